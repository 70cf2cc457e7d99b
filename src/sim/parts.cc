#include "sim/parts.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "plan/performance_model.h"

namespace fastdecode::sim {
namespace {

Nanos ToNanos(double seconds) { return std::llround(seconds * 1e9); }

}  // namespace

uint64_t Random::Bits() {  // splitmix64 (Steele, Lea, Flood 2014)
  state_ += 0x9e3779b97f4a7c15;
  uint64_t z = state_;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

double Random::Jitter(double sigma) {
  if (sigma <= 0) return 1;
  double normal = spare_;
  if (!has_spare_) {
    const double radius = std::sqrt(-2 * std::log(1 - Uniform()));
    const double angle = 2 * std::numbers::pi * Uniform();
    normal = radius * std::cos(angle);
    spare_ = radius * std::sin(angle);
  }
  has_spare_ = !has_spare_;
  return std::exp(sigma * normal - sigma * sigma / 2);
}

Parts::Parts(const plan::ModelProfile& profile, const SimOptions& options)
    : profile_(profile),
      options_(options),
      stages_((options.layers + options.layers_per_event - 1) / options.layers_per_event),
      layers_a_stage_(static_cast<double>(options.layers) / stages_),
      bytes_a_row_(plan::WireBytes(profile.key, 1)),
      slowdown_(static_cast<size_t>(options.scheduler.num_rworkers), 1.0),
      random_(options.seed) {
  const plan::ModelKey& key = profile.key;
  const double qkv = static_cast<double>(key.head_dim) * (key.num_heads + 2 * key.num_kv_heads);
  before_attention_ = static_cast<double>(key.hidden_size) * qkv / static_cast<double>(plan::LayerParameters(key));
  out_share_ = qkv / (qkv + static_cast<double>(key.head_dim) * key.num_heads);
  for (const plan::RWorkerProfile& rworker : profile.rworkers) latency_.push_back(rworker.wire.At(1));
}

const plan::RWorkerProfile& Parts::ProfileOf(int rworker) const {
  return profile_.rworkers[static_cast<size_t>(rworker) % profile_.rworkers.size()];
}

double Parts::speed(int rworker) const {
  return ProfileOf(0).attend.seconds_per_token / ProfileOf(rworker).attend.seconds_per_token;
}

Nanos Parts::Device(double seconds) { return ToNanos(seconds * random_.Jitter(options_.device_jitter)); }

DeviceTimes Parts::Stage(StageKind kind, int rows) {
  const double layer = layers_a_stage_ * profile_.layer.At(rows);
  const double copy_in = layers_a_stage_ * profile_.copy_in.At(rows);
  const double copy_out = layers_a_stage_ * profile_.copy_out.At(rows);
  switch (kind) {
    case StageKind::kFirst:
      return {0, Device(before_attention_ * layer), Device(copy_out)};
    case StageKind::kMiddle:
      return {Device(copy_in), Device(layer), Device(copy_out)};
    case StageKind::kLast:
      break;
  }
  const double ends = profile_.outer.At(rows) + profile_.serving.At(rows);
  return {Device(copy_in), Device((1 - before_attention_) * layer + ends), 0};
}

ExchangeTimes Parts::Exchange(int rworker, int rows, int64_t workload) {
  const plan::RWorkerProfile& profile = ProfileOf(rworker);
  const double bytes = bytes_a_row_ * rows;
  const double latency = latency_[static_cast<size_t>(rworker) % latency_.size()];
  const double link = std::max(0.0, profile.wire.At(bytes) - latency);
  double compute = plan::AttendSeconds(profile, rows, static_cast<double>(workload));
  compute *= slowdown_[static_cast<size_t>(rworker)] * random_.Jitter(options_.rworker_jitter);
  if (options_.straggling > 0 && random_.Uniform() < options_.straggling) compute *= options_.straggler_factor;
  const double on_rworker = options_.wire_on_rworker * (latency + link);
  const double on_wire = 1 - options_.wire_on_rworker;
  return {.out = ToNanos(layers_a_stage_ * on_wire * out_share_ * link),
          .latency = ToNanos(layers_a_stage_ * on_wire * latency / 2),
          .compute = ToNanos(layers_a_stage_ * (compute + on_rworker)),
          .in = ToNanos(layers_a_stage_ * on_wire * (1 - out_share_) * link),
          .bytes = std::llround(layers_a_stage_ * bytes)};
}

Nanos Parts::Acknowledgement(int rworker) const {
  return ToNanos(latency_[static_cast<size_t>(rworker) % latency_.size()]);
}

Nanos Parts::PrefillStage(int64_t tokens) {
  return Device((options_.layers - 1.0) / stages_ * profile_.prefill.At(static_cast<double>(tokens)));
}

Nanos Parts::PrefillEnd(int64_t tokens) { return Device(profile_.prefill_outer.At(static_cast<double>(tokens))); }

}  // namespace fastdecode::sim
