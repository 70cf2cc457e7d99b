// Runs a program and waits for it.
#pragma once

#include <atomic>
#include <string>
#include <vector>

#include "common/base/status.h"

namespace fastdecode {

struct ProcessResult {
  int status = 0;      // exit status; 128 + n if signal n ended it
  std::string output;  // standard output, if it was captured
};

// In a session of its own, so that a Ctrl-C reaches us alone. Standard output is captured,
// or goes to our standard error. Once `stop` is not 0 the program gets SIGTERM, once.
Result<ProcessResult> RunProcess(const std::vector<std::string>& command, bool capture,
                                 const std::atomic<int>* stop = nullptr);

}  // namespace fastdecode
