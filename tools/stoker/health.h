// `stoker health [--pid=N]`: reads the health pages of running groups from outside.
#pragma once

namespace stoker::command {

// 0 if pages were found and none reports a failure, 1 if one does, 2 if none was found.
int RunHealth();

}  // namespace stoker::command
