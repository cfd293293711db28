// From the host's arguments to the kernels' parameters.
#pragma once

#include "comm/exchange_params.h"
#include "moe/arguments.h"
#include "moe/descriptor.h"
#include "moe/kernel_params.h"
#include "moe/launch_options.h"

namespace stoker::moe {

FinalizeParams MakeFinalizeParams(const Shape& shape, const FinalizeArguments& finalize);
ReductionParams MakeReductionParams(const Shape& shape, const ReductionArguments& reduction);
PlainParams MakePlainParams(const Shape& shape, const void* input);
RmsNormParams MakeNormParams(const Shape& shape, const NormArguments& norm);
SumParams MakeSumParams(const Shape& shape, void* output);

// `group` is the communicator's part (Params()).
comm::ExchangeParams MakeExchangeParams(const comm::ExchangeParams& group, const Shape& shape,
                                        const comm::LaunchDescriptor& descriptor,
                                        const LaunchOptions& options);

}  // namespace stoker::moe
