#include "plan/performance_model.h"

#include <algorithm>
#include <cmath>

#include "kernels/kv_codecs.h"

namespace fastdecode::plan {
namespace {

// An R-worker's own thread receives and sends: this share of the wire's time it isn't free.
constexpr double kRWorkerShareOfWire = 0.5;
constexpr int kSamples = 9;  // of the cached tokens, where they grow

int RowsOfMiniBatch(const Deployment& deployment, int index) {
  return (deployment.batch + index) / deployment.mini_batches;
}

// Of a mini-batch's rows. Sequences are dealt to the R-workers one by one, from mini-batch to mini-batch: `before`
// are those of the mini-batches before.
int RowsOfRWorker(const Deployment& deployment, int before, int rows, int rworker) {
  const auto dealt = [&](int n) { return (n + deployment.rworkers - 1 - rworker) / deployment.rworkers; };
  return dealt(before + rows) - dealt(before);
}

// Of one exchange, what keeps the R-worker from attending.
double OwnWire(const ModelProfile& profile, const RWorkerProfile& rworker, double rows) {
  return kRWorkerShareOfWire * WireTimesOf(profile, rworker, rows).total();
}

PassTimes TimesOf(const ModelProfile& profile, const Deployment& deployment, int before_rows, int rows, double cached) {
  const double n = rows;
  const double layer = profile.layer.At(n);
  const double before = ShareBeforeAttention(profile.key);
  const double copy_in = profile.copy_in.At(n), copy_out = profile.copy_out.At(n);
  PassTimes times;
  times.first = before * layer + copy_out;
  times.middle = copy_in + layer + copy_out;
  times.last = copy_in + (1 - before) * layer;
  times.sampling = profile.outer.At(n) + profile.serving.At(n);
  for (int r = 0; r < deployment.rworkers; ++r) {
    const RWorkerProfile& rworker = RWorkerOf(profile, r);
    const double own = RowsOfRWorker(deployment, before_rows, rows, r);
    const WireTimes wire = WireTimesOf(profile, rworker, own);
    constexpr double kOnTheWay = 1 - kRWorkerShareOfWire;
    times.rworkers.push_back({.there = kOnTheWay * (wire.latency / 2 + wire.out),
                              .busy = AttendSeconds(rworker, own, own * cached) + kRWorkerShareOfWire * wire.total(),
                              .back = kOnTheWay * (wire.latency / 2 + wire.in),
                              .link_out = wire.out,
                              .link_in = wire.in});
  }
  return times;
}

std::string BoundOf(const StepPrediction& step) {
  constexpr double kFull = 0.92;
  if (step.device_busy_s >= kFull * step.step_s && step.device_busy_s >= step.rworker_busy_s) return "S-part";
  if (step.rworker_busy_s >= kFull * step.step_s) return "R-part";
  if (step.link_busy_s >= kFull * step.step_s) return "link";
  return "latency";
}

// Adds `part` of another prediction, for means.
void Accumulate(StepPrediction* sum, const StepPrediction& one, double part) {
  sum->step_s += part * one.step_s;
  sum->device_busy_s += part * one.device_busy_s;
  sum->rworker_busy_s += part * one.rworker_busy_s;
  sum->link_busy_s += part * one.link_busy_s;
  sum->stages_s += part * one.stages_s;
  sum->kernels_s += part * one.kernels_s;
  sum->layer_s += part * one.layer_s;
  sum->attend_s += part * one.attend_s;
  sum->wire_s += part * one.wire_s;
  sum->copy_s += part * one.copy_s;
  sum->workload += part * one.workload;
}

double MeanCached(const Deployment& deployment) { return deployment.prompt_tokens + deployment.output_tokens / 2; }

// Tokens that `own` rows may have until this R-worker takes `seconds`.
double TokensWithin(const RWorkerProfile& rworker, double own, double seconds) {
  constexpr int kHalvings = 60;
  double low = 0, high = seconds / rworker.attend.seconds_per_token * 100 + 1;
  if (AttendSeconds(rworker, own, 0) >= seconds) return 0;
  for (int i = 0; i < kHalvings; ++i) {
    const double middle = (low + high) / 2;
    (AttendSeconds(rworker, own, middle) <= seconds ? low : high) = middle;
  }
  return low;
}

}  // namespace

double AttendSeconds(const RWorkerProfile& rworker, double rows, double tokens) {
  if (rows <= 0) return 0;
  const std::vector<AttendCurve>& measured = rworker.attended;
  if (measured.empty()) {
    const RPartTimes& line = rworker.attend;
    return line.seconds_per_call + rows * line.seconds_per_row + tokens * line.seconds_per_token;
  }
  const double cached = tokens / rows;
  // Fewer rows than were measured: no less than a call; more: in proportion.
  if (rows <= measured.front().rows) return measured.front().by_cached.At(cached);
  if (rows >= measured.back().rows) return measured.back().by_cached.At(cached) * rows / measured.back().rows;
  size_t right = 1;
  while (measured[right].rows < rows) ++right;
  const AttendCurve& a = measured[right - 1];
  const AttendCurve& b = measured[right];
  const double share = (rows - a.rows) / (b.rows - a.rows);
  return (1 - share) * a.by_cached.At(cached) + share * b.by_cached.At(cached);
}

WireTimes WireTimesOf(const ModelProfile& profile, const RWorkerProfile& rworker, double rows) {
  if (rows <= 0 || rworker.wire.empty()) return {};
  const ModelKey& key = profile.key;
  const double total = rworker.wire.At(WireBytes(key, rows));
  const double latency = std::min(total, rworker.wire.At(1));
  const double qkv = key.num_heads + 2 * key.num_kv_heads;
  const double out = (total - latency) * qkv / (qkv + key.num_heads);
  return {.latency = latency, .out = out, .in = total - latency - out};
}

const RWorkerProfile& RWorkerOf(const ModelProfile& profile, int index) {
  return profile.rworkers[static_cast<size_t>(index) % profile.rworkers.size()];
}

double ShareBeforeAttention(const ModelKey& key) {
  const int64_t qkv = key.hidden_size * int64_t{key.head_dim} * (key.num_heads + 2 * key.num_kv_heads);
  return static_cast<double>(qkv) / static_cast<double>(LayerParameters(key));
}

int64_t LayerParameters(const ModelKey& key) {
  const int64_t heads = int64_t{key.head_dim} * (2 * key.num_heads + 2 * key.num_kv_heads);
  return key.hidden_size * (heads + 3 * key.intermediate_size);
}

int DtypeBytes(const std::string& dtype) { return dtype == "f32" ? 4 : 2; }

int64_t KvTokenBytes(const ModelKey& key) {
  constexpr int kBlock = 1024;  // large, so that what a block adds is spread
  const kernels::KvLayout layout = kernels::MakeLayout({kernels::CodeOf(key.kv_keys), kernels::CodeOf(key.kv_values)},
                                                       key.num_kv_heads, key.head_dim, kBlock);
  return layout.block_bytes() / kBlock;
}

double WireBytes(const ModelKey& key, double rows) {
  return rows * 2.0 * key.head_dim * (2 * key.num_heads + 2 * key.num_kv_heads);
}

StepPrediction PredictStep(const ModelProfile& profile, const Deployment& deployment, double cached) {
  std::vector<PassTimes> passes;
  StepPrediction step;
  double serving = 0;
  std::vector<double> kernels(static_cast<size_t>(deployment.rworkers), 0);
  int before = 0;
  for (int m = 0; m < deployment.mini_batches; ++m) {
    const int rows = RowsOfMiniBatch(deployment, m);
    if (rows == 0) continue;
    passes.push_back(TimesOf(profile, deployment, before, rows, cached));
    step.workload += RowsOfRWorker(deployment, before, rows, 0) * cached;
    serving += profile.serving.At(rows);
    step.layer_s = std::max(step.layer_s, profile.layer.At(rows));
    step.copy_s = std::max(step.copy_s, profile.copy_in.At(rows) + profile.copy_out.At(rows));
    for (int r = 0; r < deployment.rworkers; ++r) {
      const RWorkerProfile& rworker = RWorkerOf(profile, r);
      const double mine = RowsOfRWorker(deployment, before, rows, r);
      const double attend = AttendSeconds(rworker, mine, mine * cached);
      step.attend_s = std::max(step.attend_s, attend);
      kernels[static_cast<size_t>(r)] += deployment.layers * attend;
      step.wire_s = std::max(step.wire_s, rworker.wire.At(WireBytes(profile.key, rows)));
    }
    before += rows;
  }
  if (passes.empty()) return step;
  const PipelineResult result = RunPipeline(deployment.layers, passes);
  step.step_s = result.step;
  step.device_busy_s = result.device_busy;
  step.stages_s = result.device_busy - serving;
  step.kernels_s = *std::max_element(kernels.begin(), kernels.end());
  step.rworker_busy_s = result.rworker_busy;
  step.link_busy_s = result.link_busy;
  step.tokens_per_s = deployment.batch / step.step_s;
  step.bound = BoundOf(step);
  return step;
}

StepPrediction PredictDecode(const ModelProfile& profile, const Deployment& deployment) {
  StepPrediction mean;
  for (int i = 0; i < kSamples; ++i) {
    const double cached = deployment.prompt_tokens + deployment.output_tokens * (i + 0.5) / kSamples;
    Accumulate(&mean, PredictStep(profile, deployment, cached), 1.0 / kSamples);
  }
  if (mean.step_s > 0) mean.tokens_per_s = deployment.batch / mean.step_s;
  mean.bound = BoundOf(mean);
  return mean;
}

double PrefillSeconds(const ModelProfile& profile, int layers, double tokens) {
  if (tokens <= 0) return 0;
  return (layers - 1) * profile.prefill.At(tokens) + profile.prefill_outer.At(tokens);
}

SteadyPrediction PredictSteady(const ModelProfile& profile, const Deployment& deployment) {
  SteadyPrediction steady;
  steady.step = PredictStep(profile, deployment, MeanCached(deployment));
  // A prompt's last token is decoded.
  const double tokens = deployment.prompt_tokens - 1;
  steady.prefill_latency_s = PrefillSeconds(profile, deployment.layers, tokens);
  const double output = std::max(1.0, deployment.output_tokens);
  // Those that follow the ones that end in the same step are prefilled together, as many as may be.
  const double prompts = deployment.batch / output;
  const double may_be = std::max(1.0, std::floor(deployment.prefill_tokens_per_step / std::max(1.0, tokens)));
  const double together = std::clamp(prompts, 1.0, may_be);
  steady.prefill_s = PrefillSeconds(profile, deployment.layers, tokens * together) * prompts / together;
  StepPrediction& step = steady.step;
  step.device_busy_s += steady.prefill_s;
  // Prefill fills the device's gaps first.
  step.step_s = std::max(step.step_s, step.device_busy_s);
  if (step.step_s > 0) step.tokens_per_s = deployment.batch / step.step_s;
  step.bound = BoundOf(step);
  steady.sequence_s = steady.prefill_latency_s + output * step.step_s;
  return steady;
}

double Efficiency(const ModelProfile& profile, double rows) {
  const double seconds = profile.layer.At(rows);
  return seconds > 0 ? rows / seconds : 0;
}

int BatchForLatency(const ModelProfile& profile, const Deployment& deployment, double latency_s, int max_rows) {
  const double passes = deployment.mini_batches * deployment.layers * deployment.output_tokens;
  const double left = latency_s - PrefillSeconds(profile, deployment.layers, deployment.prompt_tokens - 1);
  int low = 0, high = max_rows;  // T(B) does not fall
  while (low < high) {
    const int middle = high - (high - low) / 2;
    if (passes * profile.layer.At(middle) <= left) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

int KneeOfEfficiency(const ModelProfile& profile, int max_rows, double gain) {
  int rows = 1;
  while (2 * rows <= max_rows && Efficiency(profile, 2.0 * rows) >= (1 + gain) * Efficiency(profile, rows)) rows *= 2;
  return rows;
}

double BalancedRWorkers(const ModelProfile& profile, const Deployment& deployment) {
  const double rows = static_cast<double>(deployment.batch) / deployment.mini_batches;
  double slowest = 0;
  for (const RWorkerProfile& rworker : profile.rworkers) {
    slowest = std::max(slowest, rworker.attend.seconds_per_token);
  }
  const double layer = profile.layer.At(rows);
  return layer > 0 ? rows * MeanCached(deployment) * slowest / layer : 0;
}

int64_t WorkloadLimit(const ModelProfile& profile, const Deployment& deployment) {
  double limit = 0;
  const double device = PredictSteady(profile, deployment).step.device_busy_s /
                        (static_cast<double>(deployment.layers) * deployment.mini_batches);
  for (int m = 0; m < deployment.mini_batches; ++m) {
    const int rows = RowsOfMiniBatch(deployment, m);
    double least = -1;
    for (int r = 0; r < deployment.rworkers; ++r) {
      const RWorkerProfile& rworker = RWorkerOf(profile, r);
      const double own = RowsOfRWorker(deployment, 0, rows, r);
      if (own == 0) continue;  // fewer rows than R-workers: it limits nobody
      const double tokens = TokensWithin(rworker, own, device - OwnWire(profile, rworker, own));
      least = least < 0 ? tokens : std::min(least, tokens);
    }
    limit += std::max(0.0, least);
  }
  return std::max<int64_t>(1, std::llround(limit));
}

int InjectionInterval(const Deployment& deployment, int64_t limit) {
  const double output = deployment.output_tokens;
  const double each = static_cast<double>(deployment.batch) / deployment.rworkers;
  if (each <= 0) return 1;
  const double interval = 2 * (static_cast<double>(limit) / each - deployment.prompt_tokens) - output;
  return static_cast<int>(std::clamp(std::floor(interval), 1.0, std::max(1.0, output)));
}

MemoryNeeds NeededMemory(const ModelKey& key, const Deployment& deployment, const MemoryOptions& options) {
  const int64_t bytes = DtypeBytes(key.dtype);
  const int64_t tables = key.vocab_size * key.hidden_size * (options.tied_embeddings ? 1 : 2);
  MemoryNeeds needs;
  needs.weights = (deployment.layers * LayerParameters(key) + tables) * bytes;
  const int64_t q = int64_t{key.head_dim} * key.num_heads;
  const int64_t row = bytes * (4 * key.hidden_size + 4 * q + 3 * key.intermediate_size);
  const int64_t rows = (deployment.batch + deployment.mini_batches - 1) / deployment.mini_batches;
  needs.activations =
      row * (deployment.batch + deployment.prefill_tokens_per_step) + rows * key.vocab_size * (8 + bytes);
  needs.runtime = key.device == "cpu" ? int64_t{256} << 20 : int64_t{1} << 30;
  const auto length = static_cast<int64_t>(std::ceil(deployment.prompt_tokens + deployment.output_tokens));
  const int64_t blocks = (length + options.block_tokens - 1) / options.block_tokens;
  const int64_t sequences = (deployment.batch + deployment.rworkers - 1) / deployment.rworkers;
  const kernels::KvLayout layout = kernels::MakeLayout({kernels::CodeOf(key.kv_keys), kernels::CodeOf(key.kv_values)},
                                                       key.num_kv_heads, key.head_dim, options.block_tokens);
  needs.kv_of_rworker = sequences * blocks * layout.block_bytes() * deployment.layers;
  return needs;
}

}  // namespace fastdecode::plan
