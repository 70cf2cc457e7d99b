// How fast this host's memory is read: the limit that decode attention is held against.
//
// A pass reads a buffer once with the threads of a pool, each its own part. What reads
// fastest differs between machines (one plain stream may show 12 GB/s where two with
// prefetch show 17), so the limit is the best of several methods. Measure on the memory
// that the cache lies in, in turns with what is compared: both wander with the machine's
// other load.
//
// Thread rule: the pool's owner.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "kernels/dispatch.h"
#include "rworker/compute_pool.h"

namespace fastdecode::rworker {

struct ReadMethod {
  const kernels::ReadStreamKernel* kernel = nullptr;
  int streams = 1;         // side by side, a thread
  int prefetch_bytes = 0;  // ahead; 0: none

  std::string ToString() const;  // "avx2, 2 streams, prefetch 1024 B"
};

class ReadBandwidth {
 public:
  // `data` is 64-byte aligned and outlives this, as does the pool. Bytes past the last
  // multiple of 2 KiB a thread are left out. Where the data has a part a NUMA node, as
  // PoolMemory has, each is read by its node's threads.
  ReadBandwidth(ComputePool* pool, const std::byte* data, int64_t bytes, int num_parts = 1);

  // One pass: bytes a second.
  double Measure(const ReadMethod& method);

  // The method that is fastest here: one pass of each that this CPU can run, a few more of the
  // fastest. None is begun after `deadline_ns` (NowNs) but the first.
  ReadMethod FindBest(int64_t deadline_ns = std::numeric_limits<int64_t>::max());

 private:
  struct Part {
    const std::byte* data = nullptr;
    int64_t bytes = 0;
  };
  void ReadPart(int thread) const;

  ComputePool* const pool_;
  std::vector<Part> parts_;  // by thread
  int64_t total_bytes_ = 0;
  const ReadMethod* method_ = nullptr;
};

// Bytes of the largest cache, 0 where the system does not say.
int64_t LastLevelCacheBytes();

// What a pass must touch at least so that caches do not answer for memory: 1 GiB and
// three times the last-level cache.
int64_t BytesBeyondCaches();

}  // namespace fastdecode::rworker
