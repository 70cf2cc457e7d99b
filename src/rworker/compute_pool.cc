#include "rworker/compute_pool.h"

#include <algorithm>
#include <cstring>
#include <sstream>

#include "common/base/logging.h"
#include "rworker/host_limits.h"

namespace fastdecode::rworker {
namespace {

// About 50 us: longer than the gap between two layers of a busy step.
constexpr int kSpins = 1000;
constexpr int kNotPinned = -1;

void PinTo(const std::vector<int>& cpus) {
  const int error = BindThisThread(cpus);
  LOG_IF(WARNING, error != 0) << "a compute thread could not be pinned: " << strerror(error);
}

std::string Join(const std::vector<int>& numbers, size_t count) {
  std::ostringstream text;
  for (size_t i = 0; i < count; ++i) text << (i == 0 ? "" : ",") << numbers[i];
  return text.str();
}

}  // namespace

ComputePool::ComputePool(int threads, bool pin) : caller_cpus_(AllowedCpus()) {
  const int allowed = AllowedThreads();
  if (threads <= 0) threads = allowed;
  const bool fits = threads <= allowed && static_cast<size_t>(threads) <= caller_cpus_.size();
  // One thread gains nothing from being pinned, and would share the mask's first CPU with
  // every other process that has the same mask.
  pinned_ = pin && fits && threads > 1;
  if (pinned_) {
    spins_ = kSpins;
    LOG(INFO) << "compute threads: " << threads << ", pinned to CPUs "
              << Join(caller_cpus_, static_cast<size_t>(threads));
  } else {
    LOG(INFO) << "compute threads: " << threads << ", neither pinned nor spinning"
              << (fits ? "" : " (more than the " + std::to_string(allowed) + " CPUs allowed)");
  }
  workers_.reserve(static_cast<size_t>(threads - 1));
  for (int t = 1; t < threads; ++t) {
    const int cpu = pinned_ ? caller_cpus_[static_cast<size_t>(t)] : kNotPinned;
    workers_.emplace_back([this, t, cpu] { WorkerLoop(t, cpu); });
  }
  if (pinned_) PinTo({caller_cpus_[0]});
}

ComputePool::~ComputePool() {
  stop_ = true;
  epoch_.fetch_add(1, std::memory_order_release);
  epoch_.notify_all();
  for (std::thread& worker : workers_) worker.join();
  if (pinned_) PinTo(caller_cpus_);
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

void ComputePool::WorkerLoop(int thread, int cpu) {
  if (cpu != kNotPinned) PinTo({cpu});
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
