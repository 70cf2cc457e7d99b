#include "plan/pipeline.h"

#include <algorithm>
#include <cstddef>
#include <utility>

namespace fastdecode::plan {
namespace {

constexpr int kWarmUpPasses = 4;
constexpr int kPasses = 12;

// Where one mini-batch is. Stages 0 ... layers are the device's, then sampling.
struct Progress {
  int stage = 0;
  int passes = 0;
  double ready = 0;  // when its next stage may begin
};

double StageTime(const PassTimes& times, int stage, int layers) {
  if (stage == 0) return times.first;
  if (stage < layers) return times.middle;
  return stage == layers ? times.last : times.sampling;
}

// What all mini-batches share beside the device: when each part is free again.
struct Shared {
  std::vector<double> rworkers;
  double link_out = 0, link_in = 0;
};

// O of the layer whose Q, K, V are ready at `at` is back when this returns.
double Attend(const PassTimes& times, double at, Shared* shared) {
  std::vector<std::pair<double, size_t>> attended;  // when, by which R-worker
  for (size_t r = 0; r < times.rworkers.size(); ++r) {
    const PassTimes::Exchange& exchange = times.rworkers[r];
    const double leaves = std::max(at, shared->link_out);
    shared->link_out = leaves + exchange.link_out;
    double& free = shared->rworkers[r];
    free = std::max(leaves + exchange.there, free) + exchange.busy;
    attended.emplace_back(free, r);
  }
  std::sort(attended.begin(), attended.end());
  double done = at;
  for (const auto& [when, r] : attended) {
    const double leaves = std::max(when, shared->link_in);
    shared->link_in = leaves + times.rworkers[r].link_in;
    done = std::max(done, leaves + times.rworkers[r].back);
  }
  return done;
}

double BusyOf(const PassTimes& times, int layers) {
  return times.first + (layers - 1) * times.middle + times.last + times.sampling;
}

}  // namespace

PipelineResult RunPipeline(int layers, const std::vector<PassTimes>& mini_batches) {
  std::vector<Progress> progress(mini_batches.size());
  Shared shared{.rworkers = std::vector<double>(mini_batches.front().rworkers.size(), 0)};
  double device_free = 0, measured_from = 0, measured_to = 0;
  while (progress[0].passes < kWarmUpPasses + kPasses) {
    const auto next = std::min_element(progress.begin(), progress.end(),
                                       [](const Progress& a, const Progress& b) { return a.ready < b.ready; });
    const PassTimes& times = mini_batches[static_cast<size_t>(next - progress.begin())];
    device_free = std::max(device_free, next->ready) + StageTime(times, next->stage, layers);
    next->ready = next->stage < layers ? Attend(times, device_free, &shared) : device_free;
    if (++next->stage <= layers + 1) continue;
    next->stage = 0;
    ++next->passes;
    if (next != progress.begin()) continue;
    if (next->passes == kWarmUpPasses) measured_from = device_free;
    measured_to = device_free;
  }
  PipelineResult result;
  result.step = (measured_to - measured_from) / kPasses;
  std::vector<double> busy(shared.rworkers.size(), 0);
  double out = 0, in = 0;
  for (const PassTimes& times : mini_batches) {
    result.device_busy += BusyOf(times, layers);
    for (size_t r = 0; r < busy.size(); ++r) {
      busy[r] += layers * times.rworkers[r].busy;
      out += layers * times.rworkers[r].link_out;
      in += layers * times.rworkers[r].link_in;
    }
  }
  result.link_busy = std::max(out, in);
  if (!busy.empty()) result.rworker_busy = *std::max_element(busy.begin(), busy.end());
  return result;
}

}  // namespace fastdecode::plan
