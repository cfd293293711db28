// The finalize kernel written by hand for one case (bf16, up to four ranks, one vector a thread),
// without environment, producer or epilogue: what the templates must not cost. It takes the same
// parameters as the shipped kernel and can stand in for it (LaunchOptions::kernel). Its slow path
// only gives up; it is for measuring, not for use.
#pragma once

namespace stoker::bench {

const void* HandWrittenFinalizeKernel();

}  // namespace stoker::bench
