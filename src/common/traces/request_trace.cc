#include "common/traces/request_trace.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <fstream>
#include <nlohmann/json.hpp>

namespace fastdecode {
namespace {

constexpr int64_t kMaxTokens = int64_t{1} << 30;

// "2023-11-16 18:15:46.6805900,374,44"
bool ParseAzure(const std::string& line, TraceEntry* entry) {
  std::tm time{};
  double seconds = 0;
  long long prompt = 0;
  long long output = 0;
  int end = 0;
  const int fields = std::sscanf(line.c_str(), "%d-%d-%d %d:%d:%lf,%lld,%lld%n", &time.tm_year, &time.tm_mon,
                                 &time.tm_mday, &time.tm_hour, &time.tm_min, &seconds, &prompt, &output, &end);
  if (fields != 8 || line.find_first_not_of("\r", static_cast<size_t>(end)) != std::string::npos) return false;
  time.tm_year -= 1900;
  time.tm_mon -= 1;
  entry->arrival_s = static_cast<double>(timegm(&time)) + seconds;
  entry->prompt_tokens = prompt;
  entry->output_tokens = output;
  return true;
}

// {"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [...]}
bool ParseMooncake(const std::string& line, TraceEntry* entry) {
  const bool allow_exceptions = false;
  const auto object = nlohmann::json::parse(line, nullptr, allow_exceptions);
  if (!object.is_object()) return false;
  for (const char* name : {"timestamp", "input_length", "output_length"}) {
    if (!object.contains(name) || !object[name].is_number()) return false;
  }
  if (!object["input_length"].is_number_integer() || !object["output_length"].is_number_integer()) return false;
  entry->arrival_s = object["timestamp"].get<double>() / 1000;
  entry->prompt_tokens = object["input_length"].get<int64_t>();
  entry->output_tokens = object["output_length"].get<int64_t>();
  return true;
}

bool Sane(const TraceEntry& entry) {
  return std::isfinite(entry.arrival_s) && entry.prompt_tokens >= 0 && entry.prompt_tokens <= kMaxTokens &&
         entry.output_tokens >= 0 && entry.output_tokens <= kMaxTokens;
}

}  // namespace

Result<std::vector<TraceEntry>> ReadTrace(const std::string& path) {
  std::ifstream file(path);
  if (!file.is_open()) return NotFound("trace " + path + " cannot be opened: " + std::strerror(errno));
  const bool mooncake = file.peek() == '{';
  std::vector<TraceEntry> entries;
  std::string line;
  for (int number = 1; std::getline(file, line); ++number) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    if (!mooncake && number == 1 && line.starts_with("TIMESTAMP")) continue;
    TraceEntry entry;
    if (!(mooncake ? ParseMooncake(line, &entry) : ParseAzure(line, &entry)) || !Sane(entry)) {
      return InvalidArgument("trace " + path + ", line " + std::to_string(number) + ": expected " +
                             (mooncake ? "{\"timestamp\": ms, \"input_length\": tokens, \"output_length\": tokens, ...}"
                                       : "TIMESTAMP,ContextTokens,GeneratedTokens"));
    }
    entries.push_back(entry);
  }
  if (entries.empty()) return InvalidArgument("trace " + path + " has no entry");
  const double start_s = entries.front().arrival_s;
  for (TraceEntry& entry : entries) entry.arrival_s = std::max(0.0, entry.arrival_s - start_s);
  return entries;
}

Lengths ClipToContext(const TraceEntry& entry, int max_context) {
  Lengths lengths;
  lengths.prompt = static_cast<int>(std::clamp<int64_t>(entry.prompt_tokens, 1, std::max(1, max_context / 2)));
  lengths.output = static_cast<int>(std::clamp<int64_t>(entry.output_tokens, 1, max_context - lengths.prompt));
  return lengths;
}

}  // namespace fastdecode
