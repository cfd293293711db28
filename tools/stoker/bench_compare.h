// `stoker bench compare OLD NEW`: two files of rows, cell by cell.
//
// The difference of a cell counts only if it is larger than both files' A/A differences of that
// cell (the rows "stoker" and "stoker again") and than 1%; with no A/A pair the verdict is
// "unclear".
#pragma once

#include <string>

namespace stoker::command {

// 0 if no cell is slower, 1 if one is, 2 for files that cannot be read.
int RunBenchCompare(const std::string& old_path, const std::string& new_path);

}  // namespace stoker::command
