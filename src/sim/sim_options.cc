#include "sim/sim_options.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <random>

namespace fastdecode::sim {
namespace {

constexpr double kMaxSeconds = 1e9;
constexpr int64_t kMaxRequests = 100'000'000;
constexpr long kMaxRWorkers = 100'000;

// A number at the begin of `text`, without a sign; null: none, or too large. Else what follows it.
const char* ParseRWorker(const char* text, int* rworker) {
  char* end = nullptr;
  const long number = *text >= '0' && *text <= '9' ? std::strtol(text, &end, 10) : -1;
  if (number < 0 || number > kMaxRWorkers) return nullptr;
  *rworker = static_cast<int>(number);
  return end;
}

// "@12.5+2": `at` and `for`, both optional at the end of `text`.
bool ParseTimes(const char* text, Fault* fault) {
  int used = 0;
  if (*text == '\0') return true;
  if (std::sscanf(text, "@%lf%n", &fault->at_s, &used) != 1) return false;
  text += used;
  if (*text != '\0') {
    used = 0;
    if (std::sscanf(text, "+%lf%n", &fault->for_s, &used) != 1 || !(fault->for_s > 0)) return false;
    text += used;
  }
  return *text == '\0' && fault->at_s >= 0 && fault->at_s <= kMaxSeconds && fault->for_s <= kMaxSeconds;
}

}  // namespace

Result<Fault> ParseLoss(const std::string& text) {
  Fault fault{.kind = Fault::Kind::kLost};
  const char* const rest = ParseRWorker(text.c_str(), &fault.rworker);
  if (rest == nullptr || *rest != '@' || !ParseTimes(rest, &fault)) {
    return InvalidArgument("'" + text + "': expected R-WORKER@SECONDS or R-WORKER@SECONDS+SECONDS, as in 3@12.5+2");
  }
  return fault;
}

Result<Fault> ParseSlowdown(const std::string& text) {
  Fault fault{.kind = Fault::Kind::kSlow};
  int used = 0;
  const char* const rest = ParseRWorker(text.c_str(), &fault.rworker);
  if (rest == nullptr || std::sscanf(rest, "x%lf%n", &fault.factor, &used) != 1 ||
      !(fault.factor > 0 && fault.factor <= 1e6) || !ParseTimes(rest + used, &fault)) {
    return InvalidArgument("'" + text +
                           "': expected R-WORKERxFACTOR, R-WORKERxFACTOR@SECONDS or R-WORKERxFACTOR@SECONDS+SECONDS, "
                           "as in 3x2.5@10+4");
  }
  return fault;
}

Result<std::vector<SimRequest>> MakeRequests(const RequestOptions& options) {
  std::vector<TraceEntry> entries;
  if (options.trace.empty()) {
    if (options.prompt_tokens + int64_t{options.output_tokens} > options.max_context) {
      return InvalidArgument("--prompt_tokens " + std::to_string(options.prompt_tokens) + " and --output_tokens " +
                             std::to_string(options.output_tokens) + " are more than the context of " +
                             std::to_string(options.max_context));
    }
    entries.push_back({0, options.prompt_tokens, options.output_tokens});
  } else {
    FD_ASSIGN_OR_RETURN(entries, ReadTrace(options.trace));
  }
  const int64_t count = options.requests > 0 ? options.requests : static_cast<int64_t>(entries.size());
  if (count > kMaxRequests) {
    return InvalidArgument("--requests " + std::to_string(count) + ": expected at most " +
                           std::to_string(kMaxRequests));
  }
  // A repetition follows the one before it after a mean gap.
  double span = 0;
  for (const TraceEntry& entry : entries) span = std::max(span, entry.arrival_s);
  const double period = span + (entries.size() > 1 ? span / static_cast<double>(entries.size() - 1) : 0);
  std::mt19937_64 random(options.seed);
  std::vector<SimRequest> requests(static_cast<size_t>(count));
  for (size_t i = 0; i < requests.size(); ++i) {
    const TraceEntry& entry = entries[i % entries.size()];
    const Lengths lengths = options.trace.empty() ? Lengths{options.prompt_tokens, options.output_tokens}
                                                  : ClipToContext(entry, options.max_context);
    SimRequest& request = requests[i];
    request.prompt = lengths.prompt;
    request.max_tokens = request.tokens = lengths.output;
    if (options.rate > 0) {
      const double at = entry.arrival_s + period * static_cast<double>(i / entries.size());
      request.arrival = static_cast<Nanos>(std::min(at / options.rate, kMaxSeconds) * 1e9);
    }
    if (options.shortest_end < 1) {
      const double share = std::uniform_real_distribution<double>(options.shortest_end, 1.0)(random);
      request.tokens = std::max(1, static_cast<int32_t>(std::lround(share * request.max_tokens)));
    }
  }
  std::stable_sort(requests.begin(), requests.end(),
                   [](const SimRequest& a, const SimRequest& b) { return a.arrival < b.arrival; });
  return requests;
}

}  // namespace fastdecode::sim
