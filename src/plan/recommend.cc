#include "plan/recommend.h"

#include <algorithm>
#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <set>

namespace fastdecode::plan {
namespace {

constexpr int kMaxBatch = 65536;  // of a config
constexpr double kEnough = 0.95;  // of the tokens/s that any number of sockets would give
constexpr double kPlenty = 4096;  // sockets: many times what a config may have
constexpr double kGiB = 1024.0 * 1024 * 1024;

[[gnu::format(printf, 1, 2)]] std::string Text(const char* format, ...) {
  char line[512];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(line, sizeof(line), format, arguments);
  va_end(arguments);
  return line;
}

class Planner {
 public:
  explicit Planner(const Wishes& wishes) : wishes_(wishes), key_(wishes.times.key) {
    Deployment& d = result_.deployment;
    d.layers = wishes.model.attention.num_layers;
    d.mini_batches = wishes.mini_batches;
    d.rworkers = wishes.sockets;
    d.prompt_tokens = wishes.prompt_tokens;
    d.output_tokens = wishes.output_tokens;
  }

  Result<Recommendation> Run() {
    const auto mean = static_cast<int64_t>(std::ceil(Length()));
    result_.max_context = wishes_.max_context > 0 ? wishes_.max_context : mean;
    FD_RETURN_IF_ERROR(ChooseBatch());
    ChooseSockets();
    Deployment& d = result_.deployment;
    result_.balanced_rworkers = BalancedRWorkers(wishes_.times, d);
    result_.steady = PredictSteady(wishes_.times, d);
    result_.memory = MemoryOf(d);
    result_.workload_limit = std::max(WorkloadLimit(wishes_.times, d), result_.max_context);
    result_.interval = InjectionInterval(d, result_.workload_limit);
    CheckWishes();
    Options();
    WhatIf();
    return std::move(result_);
  }

 private:
  double Length() const { return wishes_.prompt_tokens + wishes_.output_tokens; }
  void Because(std::string text) { result_.reasons.push_back(std::move(text)); }
  void Short(std::string text) { result_.shortfalls.push_back(std::move(text)); }

  MemoryNeeds MemoryOf(const Deployment& deployment) const {
    const MemoryOptions options{.block_tokens = wishes_.block_tokens,
                                .tied_embeddings = wishes_.model.tie_word_embeddings};
    MemoryNeeds needs = NeededMemory(key_, deployment, options);
    Deployment longest = deployment;  // a cache holds at least the longest sequence
    longest.batch = 1;
    longest.prompt_tokens = 0;
    longest.output_tokens = static_cast<double>(result_.max_context);
    needs.kv_of_rworker = std::max(needs.kv_of_rworker, NeededMemory(key_, longest, options).kv_of_rworker);
    return needs;
  }

  // The largest batch whose memory is there, by `fits`; 0: not even one.
  template <typename Fits>
  int LargestBatch(const Fits& fits) const {
    int low = 0, high = kMaxBatch;
    while (low < high) {
      const int middle = high - (high - low) / 2;
      Deployment d = result_.deployment;
      d.batch = middle;
      if (fits(MemoryOf(d))) {
        low = middle;
      } else {
        high = middle - 1;
      }
    }
    return low;
  }

  Status ChooseBatch() {
    int most = kMaxBatch;
    if (wishes_.device_memory > 0) {
      most = LargestBatch([&](const MemoryNeeds& needs) { return needs.device() <= wishes_.device_memory; });
      if (most == 0) {
        Deployment one = result_.deployment;
        one.batch = 1;
        const MemoryNeeds needs = MemoryOf(one);
        return Status(StatusCode::kResourceExhausted,
                      Text("the device has %.1f GiB; weights (%.1f GiB), rows and the runtime take %.1f: %.1f GiB are "
                           "missing. A smaller model or dtype, or a larger device, would do",
                           static_cast<double>(wishes_.device_memory) / kGiB, static_cast<double>(needs.weights) / kGiB,
                           static_cast<double>(needs.device()) / kGiB,
                           static_cast<double>(needs.device() - wishes_.device_memory) / kGiB));
      }
    }
    int cache = kMaxBatch;
    if (wishes_.socket_memory > 0) {
      cache = LargestBatch([&](const MemoryNeeds& needs) { return needs.kv_of_rworker <= wishes_.socket_memory; });
      if (cache == 0) {
        Deployment one = result_.deployment;
        one.batch = 1;
        return Status(
            StatusCode::kResourceExhausted,
            Text("a socket has %.2f GiB for its KV cache; one sequence of %lld tokens takes %.2f",
                 static_cast<double>(wishes_.socket_memory) / kGiB, static_cast<long long>(result_.max_context),
                 static_cast<double>(MemoryOf(one).kv_of_rworker) / kGiB));
      }
    }
    PickBatch(most, cache);
    return OkStatus();
  }

  void PickBatch(int device_most, int cache_most) {
    const int k = wishes_.mini_batches;
    int wanted = wishes_.batch;
    if (wanted > 0) {
      Because(Text("batch %d: asked for", wanted));
    } else if (wishes_.latency_s > 0) {
      const int rows = BatchForLatency(wishes_.times, result_.deployment, wishes_.latency_s, kMaxBatch / k);
      wanted = std::max(rows, 1) * k;
      const double prefill = PrefillSeconds(wishes_.times, result_.deployment.layers, wishes_.prompt_tokens - 1);
      if (rows == 0) {
        Because(
            Text("batch %d: the smallest; even one row a mini-batch takes %.3g s, %d * N * %.0f * T(1), and %.3g "
                 "of prefill",
                 wanted, k * result_.deployment.layers * wishes_.output_tokens * wishes_.times.layer.At(1), k,
                 wishes_.output_tokens, prefill));
      } else {
        Because(Text("batch %d: the largest with %d * N * %.0f * T(B) <= %g s less %.3g of prefill: T(%d) = %.3f ms",
                     wanted, k, wishes_.output_tokens, wishes_.latency_s, prefill, rows,
                     wishes_.times.layer.At(rows) * 1e3));
      }
    } else {
      wanted = KneeOfEfficiency(wishes_.times, kMaxBatch / k) * k;
      Because(
          Text("batch %d: the knee of E(B) = B / T(B); %d rows a mini-batch make %.0f rows/s a layer, twice as many "
               "%.0f %% more",
               wanted, wanted / k, Efficiency(wishes_.times, wanted / k),
               100 * (Efficiency(wishes_.times, 2.0 * wanted / k) / Efficiency(wishes_.times, wanted / k) - 1)));
    }
    const int fits = std::min(device_most, cache_most);
    if (wanted > fits) {
      const bool device = device_most < cache_most;
      Deployment d = result_.deployment;
      d.batch = wanted;
      const MemoryNeeds needs = MemoryOf(d);
      const int64_t have = device ? wishes_.device_memory : wishes_.socket_memory;
      const int64_t need = device ? needs.device() : needs.kv_of_rworker;
      Short(Text("batch %d would take %.1f GiB of %s, which has %.1f: %d fits", wanted,
                 static_cast<double>(need) / kGiB, device ? "the device" : "a socket's KV cache",
                 static_cast<double>(have) / kGiB, fits));
      wanted = fits;
    }
    result_.deployment.batch = std::max(wanted, 1);
    result_.deployment.mini_batches = std::min(k, result_.deployment.batch);
  }

  double TokensWith(int sockets) const {
    Deployment d = result_.deployment;
    d.rworkers = sockets;
    return PredictSteady(wishes_.times, d).step.tokens_per_s;
  }

  bool CacheFits(int sockets) const {
    Deployment d = result_.deployment;
    d.rworkers = sockets;
    return wishes_.socket_memory == 0 || MemoryOf(d).kv_of_rworker <= wishes_.socket_memory;
  }

  void ChooseSockets() {
    Deployment& d = result_.deployment;
    const double formula = BalancedRWorkers(wishes_.times, d);
    const int plenty = std::max(wishes_.sockets, static_cast<int>(std::min({4 * formula + 1, 1.0 * d.batch, kPlenty})));
    const double most = TokensWith(plenty);
    int needed = 1;
    for (int high = plenty; needed < high;) {  // more sockets don't give less
      const int middle = needed + (high - needed) / 2;
      if (TokensWith(middle) >= kEnough * most) {
        high = middle;
      } else {
        needed = middle + 1;
      }
    }
    int for_cache = 1;
    while (for_cache < wishes_.sockets && !CacheFits(for_cache)) ++for_cache;
    d.rworkers = std::min(std::max(needed, for_cache), wishes_.sockets);
    Because(
        Text("%d R-worker%s: B * %s * R / T(B) = %.1f keep%s pace with the S-part (B = %d rows, a mini-batch's); %d "
             "give %.0f %% of the tokens/s that any number would",
             d.rworkers, d.rworkers == 1 ? "" : "s", wishes_.prompt_tokens > 1 ? "(p + g/2)" : "S/2", formula,
             formula <= 1 ? "s" : "", d.batch / d.mini_batches, d.rworkers, 100 * TokensWith(d.rworkers) / most));
    if (for_cache > needed) {
      Because(Text("the KV cache asks for %d of them, speed for %d", for_cache, needed));
    }
    if (needed > wishes_.sockets) {
      Short(Text("the S-part could keep %d R-workers busy; there are %d, which give %.0f of %.0f tokens/s", needed,
                 wishes_.sockets, TokensWith(wishes_.sockets), most));
    }
  }

  void CheckWishes() {
    const SteadyPrediction& steady = result_.steady;
    if (wishes_.latency_s > 0 && steady.sequence_s > wishes_.latency_s) {
      Short(Text("a sequence will take %.1f s, %.1f more than the %.1f asked for (%s bound): %s would help",
                 steady.sequence_s, steady.sequence_s - wishes_.latency_s, wishes_.latency_s, steady.step.bound.c_str(),
                 Remedy(steady.step.bound)));
    }
    if (wishes_.tokens_per_s > 0 && steady.step.tokens_per_s < wishes_.tokens_per_s) {
      Short(Text("%.0f tokens/s are expected, %.0f less than the %.0f asked for (%s bound)", steady.step.tokens_per_s,
                 wishes_.tokens_per_s - steady.step.tokens_per_s, wishes_.tokens_per_s, steady.step.bound.c_str()));
    }
  }

  // Of a sequence that takes too long.
  static const char* Remedy(const std::string& bound) {
    if (bound == "R-part") return "more R-workers or a smaller batch";
    if (bound == "link") return "a faster link or a smaller batch";
    if (bound == "S-part") return "a faster device, a smaller batch or fewer output tokens";
    return "a faster link, a faster device or fewer output tokens";
  }

  double PerMoney(double tokens_per_s, int sockets) const {
    const double price = wishes_.device_price + sockets * wishes_.socket_price;
    return wishes_.device_price > 0 && price > 0 ? tokens_per_s * 3600 / price : 0;
  }

  Option MakeOption(const std::string& name, const ModelProfile& times, const Deployment& d) const {
    const SteadyPrediction steady = PredictSteady(times, d);
    return {name,
            d.rworkers,
            d.batch,
            steady.step.step_s,
            steady.step.tokens_per_s,
            steady.step.bound,
            PerMoney(steady.step.tokens_per_s, d.rworkers)};
  }

  // The KV cache in the device's own memory, as others do: the batch is what fits there.
  void DeviceAlone() {
    if (wishes_.device_memory == 0 || wishes_.device_bytes_per_s == 0) return;
    Deployment d = result_.deployment;
    const double token = static_cast<double>(KvTokenBytes(key_)) * d.layers;
    d.batch = 1;
    const double left = static_cast<double>(wishes_.device_memory - MemoryOf(d).device());
    d.batch = static_cast<int>(std::min<double>(kMaxBatch, std::max(0.0, left / (Length() * token))));
    if (d.batch == 0) return;
    const double mean = wishes_.prompt_tokens + wishes_.output_tokens / 2;
    const double attention = d.batch * mean * token / wishes_.device_bytes_per_s;
    const double prefill = PrefillSeconds(wishes_.times, d.layers, wishes_.prompt_tokens - 1) * d.batch /
                           std::max(1.0, wishes_.output_tokens);
    const double step =
        d.layers * wishes_.times.layer.At(d.batch) + wishes_.times.outer.At(d.batch) + attention + prefill;
    const double rate = d.batch / step;
    result_.options.push_back({"device only", 0, d.batch, step, rate, "KV memory", PerMoney(rate, 0)});
  }

  void Options() {
    DeviceAlone();
    Deployment d = result_.deployment;
    const int recommended = result_.deployment.rworkers;
    std::set<int> counts = {recommended, wishes_.sockets};
    for (int sockets = 1; sockets < wishes_.sockets; sockets = sockets < 8 ? sockets + 1 : 2 * sockets) {
      counts.insert(sockets);
    }
    for (const int sockets : counts) {
      d.rworkers = sockets;
      if (!CacheFits(sockets)) continue;
      const bool chosen = sockets == recommended;
      result_.options.push_back(MakeOption(chosen         ? "recommended"
                                           : sockets == 1 ? "hybrid"
                                                          : "fleet",
                                           wishes_.times, d));
    }
  }

  static Curve Scaled(const Curve& curve, double factor) {
    std::vector<TimePoint> points = curve.points();
    for (TimePoint& point : points) point.seconds *= factor;
    return Curve(std::move(points));
  }

  void WhatIf() {
    Deployment d = result_.deployment;
    const auto add = [&](const std::string& name, const ModelProfile& times, const Deployment& deployment) {
      result_.what_if.push_back(MakeOption(name, times, deployment));
    };
    ++d.rworkers;
    add("one more R-worker", wishes_.times, d);
    --d.rworkers;
    ModelProfile device = wishes_.times;
    for (Curve* curve : {&device.layer, &device.outer, &device.prefill, &device.prefill_outer})
      *curve = Scaled(*curve, 0.5);
    add("a device twice as fast", device, d);
    ModelProfile memory = wishes_.times, link = wishes_.times;
    for (RWorkerProfile& rworker : memory.rworkers) {
      rworker.attend.seconds_per_token /= 1.25;
      for (AttendCurve& curve : rworker.attended) curve.by_cached = Scaled(curve.by_cached, 0.8);
    }
    add("R-workers' memory 25 % faster", memory, d);
    for (RWorkerProfile& rworker : link.rworkers) rworker.wire = Scaled(rworker.wire, 0.5);
    add("a link twice as fast", link, d);
  }

  const Wishes& wishes_;
  const ModelKey& key_;
  Recommendation result_;
};

}  // namespace

Result<Recommendation> Recommend(const Wishes& wishes) {
  const double longest = wishes.prompt_tokens + wishes.output_tokens;
  if (wishes.sockets < 1 || wishes.mini_batches < 1 || !(wishes.output_tokens >= 1) || !(wishes.prompt_tokens >= 0)) {
    return InvalidArgument("expected at least one socket, one mini-batch and one output token");
  }
  if (longest > static_cast<double>(wishes.model.max_position_embeddings)) {
    return InvalidArgument(Text("%.0f prompt and output tokens are %.0f more than the model's context of %lld", longest,
                                longest - static_cast<double>(wishes.model.max_position_embeddings),
                                static_cast<long long>(wishes.model.max_position_embeddings)));
  }
  if (wishes.max_context != 0 && (static_cast<double>(wishes.max_context) < longest ||
                                  wishes.max_context > wishes.model.max_position_embeddings)) {
    return InvalidArgument(
        Text("a longest sequence of %lld tokens: expected %.0f, what prompt and output tokens come "
             "to, to the model's context of %lld",
             static_cast<long long>(wishes.max_context), longest,
             static_cast<long long>(wishes.model.max_position_embeddings)));
  }
  return Planner(wishes).Run();
}

}  // namespace fastdecode::plan
