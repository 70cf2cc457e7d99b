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
      before_attention_(plan::ShareBeforeAttention(profile.key)),
      bytes_a_row_(plan::WireBytes(profile.key, 1)),
      slowdown_(static_cast<size_t>(options.scheduler.num_rworkers), 1.0),
      random_(options.seed) {}

double Parts::speed(int rworker) const {
  return profile_.rworkers.front().attend.seconds_per_token /
         plan::RWorkerOf(profile_, rworker).attend.seconds_per_token;
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
  const plan::RWorkerProfile& profile = plan::RWorkerOf(profile_, rworker);
  const plan::WireTimes wire = plan::WireTimesOf(profile_, profile, rows);
  double compute = plan::AttendSeconds(profile, rows, static_cast<double>(workload));
  compute *= slowdown_[static_cast<size_t>(rworker)] * random_.Jitter(options_.rworker_jitter);
  if (options_.straggling > 0 && random_.Uniform() < options_.straggling) compute *= options_.straggler_factor;
  // The link is taken for as long as the bytes need, whatever share of it the R-worker's thread is taken, too.
  const double on_wire = 1 - options_.wire_on_rworker;
  const auto layers = [this](double seconds) { return ToNanos(layers_a_stage_ * seconds); };
  return {.out = layers(wire.out),
          .in = layers(wire.in),
          .there = layers(on_wire * (wire.out + wire.latency / 2)),
          .busy = layers(compute + options_.wire_on_rworker * wire.total()),
          .kernels = layers(compute),
          .latency_back = layers(on_wire * wire.latency / 2),
          .back = layers(on_wire * wire.in),
          .bytes = std::llround(layers_a_stage_ * bytes_a_row_ * rows)};
}

Nanos Parts::Acknowledgement(int rworker) const { return ToNanos(plan::RWorkerOf(profile_, rworker).wire.At(1)); }

Nanos Parts::PrefillStage(int64_t tokens) {
  return Device((options_.layers - 1.0) / stages_ * profile_.prefill.At(static_cast<double>(tokens)));
}

Nanos Parts::PrefillEnd(int64_t tokens) { return Device(profile_.prefill_outer.At(static_cast<double>(tokens))); }

}  // namespace fastdecode::sim
