// Counters of a session: written by its compute thread, read by the control thread for
// heartbeats and for the line that ends the session.
#pragma once

#include <atomic>
#include <cstdint>

#include "common/wire/control.h"

namespace fastdecode::rworker {

struct SessionCounters {
  std::atomic<uint64_t> free_blocks{0};
  std::atomic<uint64_t> total_blocks{0};
  std::atomic<uint64_t> sequences{0};
  std::atomic<uint64_t> workload{0};
  std::atomic<uint64_t> peak_workload{0};
  std::atomic<uint64_t> rows{0};
  std::atomic<uint64_t> steps{0};
  std::atomic<uint64_t> kv_tokens_appended{0};
  std::atomic<uint64_t> compute_ns{0};
  std::atomic<uint64_t> kv_beyond_range{0};

  // Each value is exact, but they may be of different moments.
  Heartbeat Snapshot() const {
    auto get = [](const std::atomic<uint64_t>& value) { return value.load(std::memory_order_relaxed); };
    Heartbeat out;
    out.free_blocks = get(free_blocks);
    out.total_blocks = get(total_blocks);
    out.sequences = get(sequences);
    out.workload = get(workload);
    out.peak_workload = get(peak_workload);
    out.rows = get(rows);
    out.steps = get(steps);
    out.kv_tokens_appended = get(kv_tokens_appended);
    out.compute_ns = get(compute_ns);
    out.kv_beyond_range = get(kv_beyond_range);
    return out;
  }
};

}  // namespace fastdecode::rworker
