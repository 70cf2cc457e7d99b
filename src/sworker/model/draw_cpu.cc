#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "sworker/model/draw.h"

namespace fastdecode {
namespace {

// top-p alone looks at this many candidates first, then at eight times as many, until
// their probability suffices: sorting a whole vocabulary costs more than the rest.
constexpr size_t kFirstCandidates = 256;

// Kept between calls, so that a step allocates nothing.
struct Scratch {
  std::vector<float> weights;  // exp((logit - max) / temperature), an id
  std::vector<int32_t> order;  // candidates, best first
};

// Fills the weights; returns their sum.
double Weigh(std::span<const float> logits, float max, float temperature, std::vector<float>& weights) {
  weights.resize(logits.size());
  double total = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    weights[i] = std::isnan(logits[i]) ? 0.0f : std::exp((logits[i] - max) / temperature);
    total += static_cast<double>(weights[i]);
  }
  return total;
}

// The best `count` ids, in order, to the front of `order`, which holds each id once.
void RankBest(std::span<const float> logits, size_t count, std::vector<int32_t>& order) {
  const auto value = [&](int32_t id) {
    const float logit = logits[static_cast<size_t>(id)];
    return std::isnan(logit) ? -std::numeric_limits<float>::infinity() : logit;
  };
  const auto better = [&](int32_t a, int32_t b) {
    const float x = value(a), y = value(b);
    return x > y || (x == y && a < b);
  };
  const auto middle = order.begin() + static_cast<std::ptrdiff_t>(count);
  if (count < order.size()) std::nth_element(order.begin(), middle, order.end(), better);
  std::sort(order.begin(), middle, better);
}

// How many of the first candidates top-p keeps: those before which less than top_p of
// `total` lies. 0: more candidates are needed to tell.
size_t CountNucleus(const Scratch& scratch, size_t candidates, double total, double top_p, double* kept) {
  *kept = 0;
  for (size_t i = 0; i < candidates; ++i) {
    if (i > 0 && *kept >= top_p * total) return i;
    *kept += static_cast<double>(scratch.weights[static_cast<size_t>(scratch.order[i])]);
  }
  return candidates == scratch.order.size() || *kept >= top_p * total ? candidates : 0;
}

int64_t DrawRanked(const Scratch& scratch, size_t count, double target) {
  for (size_t i = 0; i + 1 < count; ++i) {
    target -= static_cast<double>(scratch.weights[static_cast<size_t>(scratch.order[i])]);
    if (target < 0) return scratch.order[i];
  }
  return scratch.order[count - 1];
}

int64_t DrawAny(const std::vector<float>& weights, double target) {
  int64_t last = 0;  // where rounding leaves a rest, the last possible id takes it
  for (size_t i = 0; i < weights.size(); ++i) {
    if (weights[i] == 0.0f) continue;
    last = static_cast<int64_t>(i);
    target -= static_cast<double>(weights[i]);
    if (target < 0) break;
  }
  return last;
}

}  // namespace

int64_t DrawFromRow(std::span<const float> logits, const SamplingParams& params, float uniform) {
  thread_local Scratch scratch;
  size_t best = 0;
  for (size_t i = 1; i < logits.size(); ++i) {
    if (logits[i] > logits[best] || std::isnan(logits[best])) best = i;
  }
  if (!std::isfinite(logits[best])) return static_cast<int64_t>(best);
  double total = Weigh(logits, logits[best], params.temperature, scratch.weights);
  const bool top_k = params.top_k > 0 && static_cast<size_t>(params.top_k) < logits.size();
  if (!top_k && params.top_p >= 1) return DrawAny(scratch.weights, static_cast<double>(uniform) * total);

  scratch.order.resize(logits.size());
  for (size_t i = 0; i < logits.size(); ++i) scratch.order[i] = static_cast<int32_t>(i);
  size_t candidates = top_k ? static_cast<size_t>(params.top_k) : std::min(kFirstCandidates, logits.size());
  RankBest(logits, candidates, scratch.order);
  if (top_k) {
    scratch.order.resize(candidates);
    total = 0;
    for (const int32_t id : scratch.order) total += static_cast<double>(scratch.weights[static_cast<size_t>(id)]);
  }
  const auto top_p = static_cast<double>(params.top_p);
  double kept = 0;
  size_t count = 0;
  while ((count = CountNucleus(scratch, candidates, total, top_p, &kept)) == 0) {
    candidates = std::min(candidates * 8, scratch.order.size());
    RankBest(logits, candidates, scratch.order);
  }
  return DrawRanked(scratch, count, static_cast<double>(uniform) * kept);
}

}  // namespace fastdecode
