#include "plan/performance_model.h"

#include <algorithm>
#include <cmath>

#include "kernels/kv_codecs.h"

namespace fastdecode::plan {
namespace {

// An R-worker's own thread receives and sends: this share of the wire's time it isn't free.
constexpr double kRWorkerShareOfWire = 0.5;
constexpr int kSamples = 9;  // of the cached tokens, where they grow

const RWorkerProfile& RWorkerOf(const ModelProfile& profile, int index) {
  return profile.rworkers[static_cast<size_t>(index) % profile.rworkers.size()];
}

// What a layer's S-part has done when Q, K and V are made, as a share: by parameters.
double ShareBeforeAttention(const ModelKey& key) {
  const int64_t qkv = key.hidden_size * int64_t{key.head_dim} * (key.num_heads + 2 * key.num_kv_heads);
  return static_cast<double>(qkv) / static_cast<double>(LayerParameters(key));
}

int RowsOfMiniBatch(const Deployment& deployment, int index) {
  return (deployment.batch + index) / deployment.mini_batches;
}

// As many rows as the fullest R-worker has, for R-workers deal sequences out one by one.
double RowsOfRWorker(double rows, const Deployment& deployment, int rworker) {
  const int whole = static_cast<int>(std::lround(rows));
  return (whole + deployment.rworkers - 1 - rworker) / deployment.rworkers;
}

// Of one exchange, what keeps the R-worker from attending.
double OwnWire(const ModelProfile& profile, const RWorkerProfile& rworker, double rows) {
  return rows > 0 ? kRWorkerShareOfWire * rworker.wire.At(WireBytes(profile.key, rows)) : 0;
}

PassTimes TimesOf(const ModelProfile& profile, const Deployment& deployment, int rows, double cached) {
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
    const double own = RowsOfRWorker(n, deployment, r);
    // The link carries everybody's rows, an R-worker handles its own.
    const double link = own > 0 ? rworker.wire.At(WireBytes(profile.key, n)) : 0;
    const double half = link * (1 - kRWorkerShareOfWire) / 2;
    times.rworkers.push_back({half, AttendSeconds(rworker, own, own * cached) + OwnWire(profile, rworker, own), half});
  }
  return times;
}

std::string BoundOf(const StepPrediction& step) {
  constexpr double kFull = 0.92;
  if (step.device_busy_s >= kFull * step.step_s && step.device_busy_s >= step.rworker_busy_s) return "S-part";
  if (step.rworker_busy_s >= kFull * step.step_s) return "R-part";
  return "latency";
}

// Adds `part` of another prediction, for means.
void Accumulate(StepPrediction* sum, const StepPrediction& one, double part) {
  sum->step_s += part * one.step_s;
  sum->device_busy_s += part * one.device_busy_s;
  sum->rworker_busy_s += part * one.rworker_busy_s;
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
  for (int m = 0; m < deployment.mini_batches; ++m) {
    const int rows = RowsOfMiniBatch(deployment, m);
    if (rows == 0) continue;
    passes.push_back(TimesOf(profile, deployment, rows, cached));
    const double own = RowsOfRWorker(rows, deployment, 0);
    step.workload += own * cached;
    serving += profile.serving.At(rows);
    step.layer_s = std::max(step.layer_s, profile.layer.At(rows));
    step.copy_s = std::max(step.copy_s, profile.copy_in.At(rows) + profile.copy_out.At(rows));
    for (int r = 0; r < deployment.rworkers; ++r) {
      const RWorkerProfile& rworker = RWorkerOf(profile, r);
      const double mine = RowsOfRWorker(rows, deployment, r);
      const double attend = AttendSeconds(rworker, mine, mine * cached);
      step.attend_s = std::max(step.attend_s, attend);
      kernels[static_cast<size_t>(r)] += deployment.layers * attend;
      step.wire_s = std::max(step.wire_s, rworker.wire.At(WireBytes(profile.key, rows)));
    }
  }
  if (passes.empty()) return step;
  const PipelineResult result = RunPipeline(deployment.layers, passes);
  step.step_s = result.step;
  step.device_busy_s = result.device_busy;
  step.stages_s = result.device_busy - serving;
  step.kernels_s = *std::max_element(kernels.begin(), kernels.end());
  step.rworker_busy_s = result.rworker_busy;
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
  // Those that follow the ones that end in the same step are prefilled together.
  const double prompts = deployment.batch / output;
  const double together = std::max(1.0, prompts);
  steady.prefill_s = PrefillSeconds(profile, deployment.layers, tokens * together) * std::min(1.0, prompts);
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
  const double passes =
      deployment.mini_batches * deployment.layers * (deployment.prompt_tokens + deployment.output_tokens);
  int low = 0, high = max_rows;  // T(B) does not fall
  while (low < high) {
    const int middle = high - (high - low) / 2;
    if (passes * profile.layer.At(middle) <= latency_s) {
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
      const double own = RowsOfRWorker(rows, deployment, r);
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
  needs.activations = row * (deployment.batch + options.prefill_tokens) + rows * key.vocab_size * (8 + bytes);
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
