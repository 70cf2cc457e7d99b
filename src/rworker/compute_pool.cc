#include "rworker/compute_pool.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <system_error>

#include "common/base/logging.h"
#include "rworker/host_limits.h"

namespace fastdecode::rworker {
namespace {

// About 50 us: longer than the gap between two layers of a busy step.
constexpr int kSpins = 1000;

void PinTo(const std::vector<int>& cpus) {
  const int error = BindThisThread(cpus);
  LOG_IF(WARNING, error != 0) << "a compute thread could not be pinned: " << strerror(error);
}

std::string Cpus(const std::vector<ThreadPlace>& places) {
  std::vector<int> cpus;
  for (const ThreadPlace& place : places) cpus.push_back(place.cpu);
  std::sort(cpus.begin(), cpus.end());
  return FormatCpuList(cpus);
}

}  // namespace

ComputePool::ComputePool(int threads, bool pin) : ComputePool(threads, FlatTopology(AllowedCpus()), pin) {}

ComputePool::ComputePool(int threads, const CpuTopology& topology, bool pin) : caller_cpus_(AllowedCpus()) {
  CHECK(!topology.nodes.empty());
  const int allowed = std::min(AllowedThreads(), topology.num_cpus());
  if (threads <= 0) threads = allowed;
  const bool fits = threads <= allowed;
  const bool one_node = topology.nodes.size() == 1;
  // One thread gains nothing from being pinned, and would share the mask's first CPU with
  // every other process that has the same mask.
  pinned_ = pin && fits && threads > 1;
  bound_ = pinned_ || (pin && !one_node);
  const std::vector<ThreadPlace> places = PlaceThreads(topology, threads);
  if (pinned_) {
    spins_ = kSpins;
    LOG(INFO) << "compute threads: " << threads << ", pinned to CPUs " << Cpus(places);
  } else {
    LOG(INFO) << "compute threads: " << threads << ", neither pinned nor spinning"
              << (fits ? "" : " (more than the " + std::to_string(allowed) + " CPUs allowed)")
              << (bound_ ? ", each on its NUMA node" : "");
  }
  std::vector<std::vector<int>> cpus;  // by thread; empty: any
  for (const ThreadPlace& place : places) {
    nodes_.push_back(place.node);
    cpus.push_back(pinned_  ? std::vector<int>{place.cpu}
                   : bound_ ? topology.nodes[static_cast<size_t>(place.node)].cpus
                            : std::vector<int>{});
  }
  workers_.reserve(static_cast<size_t>(threads - 1));
  try {
    for (int t = 1; t < threads; ++t) {
      workers_.emplace_back([this, t, own = cpus[static_cast<size_t>(t)]] { WorkerLoop(t, own); });
    }
  } catch (const std::system_error&) {
    EndWorkers();
    throw;
  }
  if (bound_) PinTo(cpus[0]);
}

ComputePool::~ComputePool() {
  EndWorkers();
  if (bound_) PinTo(caller_cpus_);
}

void ComputePool::EndWorkers() {
  stop_ = true;
  epoch_.fetch_add(1, std::memory_order_release);
  epoch_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ComputePool::Run(Work work, void* context) {
  work_ = work;
  context_ = context;
  remaining_.store(static_cast<uint32_t>(workers_.size()), std::memory_order_relaxed);
  epoch_.fetch_add(1, std::memory_order_release);
  epoch_.notify_all();
  work(context, 0);
  for (int spin = 0; spin < spins_ && remaining_.load(std::memory_order_acquire) != 0; ++spin) {
    __builtin_ia32_pause();
  }
  for (uint32_t left; (left = remaining_.load(std::memory_order_acquire)) != 0;) {
    remaining_.wait(left, std::memory_order_acquire);
  }
}

void ComputePool::WorkerLoop(int thread, const std::vector<int>& cpus) {
  if (!cpus.empty()) PinTo(cpus);
  for (uint32_t seen = 0;;) {
    for (int spin = 0; spin < spins_ && epoch_.load(std::memory_order_acquire) == seen; ++spin) {
      __builtin_ia32_pause();
    }
    while (epoch_.load(std::memory_order_acquire) == seen) epoch_.wait(seen, std::memory_order_acquire);
    ++seen;  // Run waits for every worker, so none misses an epoch
    if (stop_) return;
    work_(context_, thread);
    if (remaining_.fetch_sub(1, std::memory_order_acq_rel) == 1) remaining_.notify_one();
  }
}

}  // namespace fastdecode::rworker
