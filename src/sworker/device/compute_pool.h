// Threads that work on one matrix product together, each on weight rows of its own.
//
// libtorch's own threads are libgomp's, which spin at their barriers: a second busy
// thread on the machine makes a product many times slower. Here each thread is told to
// use one thread only, is pinned to a CPU of its own, and spins for a moment before it
// sleeps; where there are fewer CPUs than threads nothing is pinned and nothing spins.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace fastdecode {

// The CPUs that this process may run on, in ascending order.
std::vector<int> AllowedCpus();

// Makes the calling thread one that computes: libtorch uses one thread in it, and it is
// pinned to `cpu` unless that is negative.
void BecomeComputeThread(int cpu);

class ComputePool {
 public:
  // threads - 1 helpers; the caller of Run is the first thread. cpus: one a thread, or
  // empty for unpinned.
  ComputePool(int threads, std::vector<int> cpus);
  ~ComputePool();
  ComputePool(const ComputePool&) = delete;
  ComputePool& operator=(const ComputePool&) = delete;

  int size() const { return static_cast<int>(helpers_.size()) + 1; }
  int cpu_of(int thread) const { return cpus_.empty() ? -1 : cpus_[static_cast<size_t>(thread)]; }
  bool pinned() const { return !cpus_.empty(); }

  // Runs work(0) here and work(i) on helper i; returns when all are done. Rethrows the
  // first exception. Callers on several threads take turns; not to be nested.
  void Run(const std::function<void(int)>& work);

 private:
  void HelperLoop(int thread);
  void Join(std::atomic<uint32_t>& value, uint32_t until_not) const;  // spins, then sleeps

  const std::vector<int> cpus_;
  std::mutex run_mutex_;                            // one Run at a time
  const std::function<void(int)>* work_ = nullptr;  // written before round_ is raised
  alignas(64) std::atomic<uint32_t> round_{0};      // raised: there is work, or stop_
  alignas(64) std::atomic<uint32_t> running_{0};    // helpers not done with this round
  std::atomic<bool> stop_{false};
  std::mutex error_mutex_;
  std::exception_ptr error_;
  std::vector<std::thread> helpers_;
};

}  // namespace fastdecode
