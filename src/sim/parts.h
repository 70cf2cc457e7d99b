// How long each part of a deployment takes, from a profile, with seeded jitter.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/profile.h"
#include "sim/sim_options.h"

namespace fastdecode::sim {

// Counter-free and quick; the same numbers everywhere for the same seed.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t Bits();
  double Uniform() { return static_cast<double>(Bits() >> 11) * 0x1p-53; }  // [0, 1)
  // Log-normal of mean 1; `sigma` is of the logarithm.
  double Jitter(double sigma);

 private:
  uint64_t state_;
  double spare_ = 0;  // a second normal number of the last pair
  bool has_spare_ = false;
};

// A pass's work on the device, of one event's layers.
struct DeviceTimes {
  Nanos copy_in = 0, compute = 0, copy_out = 0;
  Nanos total() const { return copy_in + compute + copy_out; }
};

// Where a device stage stands in its pass.
enum class StageKind { kFirst, kMiddle, kLast };

// One R-worker's exchange, of one event's layers.
struct ExchangeTimes {
  Nanos out = 0, in = 0;   // the S-worker's link is taken by Q, K, V and by O
  Nanos there = 0;         // from when the link takes Q, K, V until the R-worker begins with them
  Nanos busy = 0;          // the R-worker is taken: it receives, computes, sends
  Nanos kernels = 0;       // of that, in its kernels
  Nanos latency_back = 0;  // O is on its way to the link
  Nanos back = 0;          // from when the link takes O until it is there
  int64_t bytes = 0;       // both ways
};

// Owns nothing but its random numbers; the profile must outlive it. One thread.
class Parts {
 public:
  Parts(const plan::ModelProfile& profile, const SimOptions& options);

  DeviceTimes Stage(StageKind kind, int rows);
  ExchangeTimes Exchange(int rworker, int rows, int64_t workload);
  Nanos Acknowledgement(int rworker) const;  // a message without rows, there and back
  bool PrefillTakesTime() const { return !profile_.prefill.empty() || !profile_.prefill_outer.empty(); }
  Nanos PrefillStage(int64_t tokens);  // one of stages()
  Nanos PrefillEnd(int64_t tokens);    // what does not follow the number of layers

  int stages() const { return stages_; }  // exchanges a pass
  double speed(int rworker) const;        // by R, relative to the profile's first
  void SetSlowdown(int rworker, double factor) { slowdown_[static_cast<size_t>(rworker)] = factor; }

 private:
  Nanos Device(double seconds);

  const plan::ModelProfile& profile_;
  const SimOptions& options_;
  int stages_;
  double layers_a_stage_;
  double before_attention_;  // share of a layer's S-part until Q, K, V are made
  double bytes_a_row_;
  std::vector<double> slowdown_;
  Random random_;
};

}  // namespace fastdecode::sim
