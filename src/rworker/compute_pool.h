// A fixed team of threads that runs one function at a time, the caller among them.
//
// A layer's work is tens of microseconds to milliseconds, so starting it must cost
// microseconds: two threads or more are pinned, one a CPU of this process's affinity
// mask, and spin a while before they sleep. Where that would hurt (more threads than CPUs that
// the mask or the cgroup's quota allows) nothing is pinned and nothing spins, and a
// log line says so. On several NUMA nodes threads are spread evenly over them, and one that
// is not pinned stays on its node at least.
//
// Thread rule: Run is called from one thread, the one that made the pool, which is
// pinned too and unpinned by the destructor.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "rworker/cpu_topology.h"

namespace fastdecode::rworker {

class ComputePool {
 public:
  // `threads` counts the caller; 0: AllowedThreads(). `pin` false: neither pins nor spins. A host that gives
  // fewer threads: std::system_error.
  explicit ComputePool(int threads, bool pin = true);
  // On the nodes of `topology`, whose CPUs the caller may use; its threads are counted the same way.
  ComputePool(int threads, const CpuTopology& topology, bool pin = true);
  ~ComputePool();
  ComputePool(const ComputePool&) = delete;
  ComputePool& operator=(const ComputePool&) = delete;

  // Calls work(context, t) once for every thread t = 0 .. num_threads() - 1 at the same
  // time and returns when all have returned; the caller is thread 0. No allocation.
  using Work = void (*)(void* context, int thread);
  void Run(Work work, void* context);

  int num_threads() const { return static_cast<int>(workers_.size()) + 1; }
  bool pinned() const { return pinned_; }
  // Where the thread runs: an index into the topology's nodes.
  int node(int thread) const { return nodes_[static_cast<size_t>(thread)]; }

 private:
  void WorkerLoop(int thread, const std::vector<int>& cpus);
  void EndWorkers();

  // Written by the caller before it raises epoch_, read by workers after they see it.
  Work work_ = nullptr;
  void* context_ = nullptr;
  bool stop_ = false;

  alignas(64) std::atomic<uint32_t> epoch_{0};      // runs started
  alignas(64) std::atomic<uint32_t> remaining_{0};  // workers still in the current run
  alignas(64) bool pinned_ = false;
  int spins_ = 0;
  std::vector<int> nodes_;        // by thread
  std::vector<int> caller_cpus_;  // the caller's mask before it was pinned
  bool bound_ = false;            // its threads have a mask of their own
  std::vector<std::thread> workers_;
};

}  // namespace fastdecode::rworker
