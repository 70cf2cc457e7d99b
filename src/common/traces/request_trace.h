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

struct Lengths {
  int prompt = 0;  // tokens
  int output = 0;
};
// An entry's lengths, both at least 1, as a model of that context (>= 2) takes them: prompt =
// min(p, context / 2), output = min(o, context - prompt).
Lengths ClipToContext(const TraceEntry& entry, int max_context);

}  // namespace fastdecode
