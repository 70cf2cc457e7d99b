// Request traces: when requests came and how long they were. bench/traces/README.md
// names the two formats.
#pragma once

#include <string>
#include <vector>

#include "common/base/status.h"

namespace fastdecode {

struct TraceEntry {
  double arrival_s = 0;  // after the first entry's
  int64_t prompt_tokens = 0;
  int64_t output_tokens = 0;
};

// Reads an Azure CSV (TIMESTAMP,ContextTokens,GeneratedTokens) or a Mooncake JSONL file,
// told apart by the first character. An error names the line.
Result<std::vector<TraceEntry>> ReadTrace(const std::string& path);

}  // namespace fastdecode
