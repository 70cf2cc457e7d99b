#include "sworker/device/compute_pool.h"

#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>
#include <pthread.h>
#include <sched.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>

#include "common/base/logging.h"

namespace fastdecode {
namespace {

// About the gap between two products of a layer, and well below a scheduler's slice.
constexpr auto kSpinTime = std::chrono::microseconds(50);
constexpr int kSpinsPerLook = 64;  // pauses between two looks at the clock

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#else
  std::this_thread::yield();
#endif
}

}  // namespace

std::vector<int> AllowedCpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> cpus;
  if (sched_getaffinity(0, sizeof(set), &set) != 0) {
    LOG(WARNING) << "sched_getaffinity: " << std::strerror(errno) << "; threads stay unpinned";
    return cpus;
  }
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
  }
  return cpus;
}

void BecomeComputeThread(int cpu) {
  at::set_num_threads(1);
  if (cpu < 0) return;
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  const int error = pthread_setaffinity_np(pthread_self(), sizeof(set), &set);
  LOG_IF(WARNING, error != 0) << "cannot pin a compute thread to CPU " << cpu << ": " << std::strerror(error);
}

ComputePool::ComputePool(int threads, std::vector<int> cpus) : cpus_(std::move(cpus)) {
  CHECK_GE(threads, 1);
  CHECK(cpus_.empty() || cpus_.size() == static_cast<size_t>(threads));
  for (int i = 1; i < threads; ++i) helpers_.emplace_back([this, i] { HelperLoop(i); });
}

ComputePool::~ComputePool() {
  stop_.store(true, std::memory_order_relaxed);
  round_.fetch_add(1, std::memory_order_release);
  round_.notify_all();
  for (std::thread& helper : helpers_) helper.join();
}

void ComputePool::Join(std::atomic<uint32_t>& value, uint32_t until_not) const {
  if (pinned()) {
    const auto deadline = std::chrono::steady_clock::now() + kSpinTime;
    do {
      for (int i = 0; i < kSpinsPerLook; ++i) {
        if (value.load(std::memory_order_acquire) != until_not) return;
        Pause();
      }
    } while (std::chrono::steady_clock::now() < deadline);
  }
  value.wait(until_not, std::memory_order_acquire);
}

void ComputePool::Run(const std::function<void(int)>& work) {
  if (helpers_.empty()) return work(0);
  std::lock_guard<std::mutex> lock(run_mutex_);
  work_ = &work;
  running_.store(static_cast<uint32_t>(helpers_.size()), std::memory_order_relaxed);
  round_.fetch_add(1, std::memory_order_release);
  round_.notify_all();
  std::exception_ptr error;
  try {
    work(0);
  } catch (...) {
    error = std::current_exception();  // rethrown below: the helpers still use `work`
  }
  for (uint32_t left; (left = running_.load(std::memory_order_acquire)) != 0;) Join(running_, left);
  {
    std::lock_guard<std::mutex> error_lock(error_mutex_);
    if (!error) error = error_;
    error_ = nullptr;
  }
  if (error) std::rethrow_exception(error);
}

void ComputePool::HelperLoop(int thread) {
  BecomeComputeThread(cpu_of(thread));
  c10::InferenceMode inference;
  uint32_t seen = 0;
  while (true) {
    Join(round_, seen);
    ++seen;  // Run waits for every helper, so rounds never pass one by.
    if (stop_.load(std::memory_order_relaxed)) return;
    try {
      (*work_)(thread);
    } catch (...) {
      std::lock_guard<std::mutex> lock(error_mutex_);
      if (!error_) error_ = std::current_exception();
    }
    if (running_.fetch_sub(1, std::memory_order_acq_rel) == 1) running_.notify_one();
  }
}

}  // namespace fastdecode
