#include "workload.h"

#include <algorithm>
#include <random>

#include "common/traces/request_trace.h"

namespace fastdecode {
namespace {

Result<std::vector<BenchRequest>> FromTrace(const WorkloadOptions& options, int max_context) {
  FD_ASSIGN_OR_RETURN(std::vector<TraceEntry> entries, ReadTrace(options.trace));
  if (options.requests > 0) {
    if (entries.size() < static_cast<size_t>(options.requests)) {
      return InvalidArgument("--requests " + std::to_string(options.requests) + ": the trace " + options.trace +
                             " has only " + std::to_string(entries.size()));
    }
    entries.resize(static_cast<size_t>(options.requests));
  }
  std::vector<BenchRequest> requests;
  for (const TraceEntry& entry : entries) {
    BenchRequest request;
    request.arrival_s = options.rate > 0 ? entry.arrival_s / options.rate : 0;
    const Lengths lengths = ClipToContext(entry, max_context);
    request.prompt_tokens = lengths.prompt;
    request.output_tokens = lengths.output;
    requests.push_back(request);
  }
  return requests;
}

}  // namespace

Result<Workload> MakeWorkload(const WorkloadOptions& options, const ServerInfo& server) {
  Workload workload;
  workload.in_flight = options.batch > 0 ? options.batch : std::max(1, server.max_batch);
  if (!options.trace.empty()) {
    FD_ASSIGN_OR_RETURN(workload.requests, FromTrace(options, server.max_context));
    if (options.rate > 0) workload.in_flight = 0;
    return workload;
  }
  if (options.prompt_tokens + int64_t{options.output_tokens} > server.max_context) {
    return InvalidArgument("--prompt_tokens " + std::to_string(options.prompt_tokens) + " and --output_tokens " +
                           std::to_string(options.output_tokens) + " are more than the context of " +
                           std::to_string(server.max_context));
  }
  const int count = options.requests > 0 ? options.requests : 2 * workload.in_flight;
  workload.requests.assign(static_cast<size_t>(count), {0, options.prompt_tokens, options.output_tokens});
  return workload;
}

std::vector<int32_t> RandomPrompt(uint64_t seed, size_t index, int tokens, int64_t vocab_size) {
  std::seed_seq sequence{seed, static_cast<uint64_t>(index)};
  std::mt19937_64 random(sequence);
  std::vector<int32_t> ids(static_cast<size_t>(tokens));
  for (int32_t& id : ids) id = static_cast<int32_t>(random() % static_cast<uint64_t>(vocab_size));
  return ids;
}

}  // namespace fastdecode
