#include "rworker/read_bandwidth.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>

#include "common/base/clock.h"

namespace fastdecode::rworker {
namespace {

constexpr int64_t kPartUnit = 2048;  // 256 bytes a stream, 8 streams
constexpr int kStreams[] = {1, 2, 4, 8};
constexpr int kPrefetchBytes[] = {0, 512, 1024, 4096};

// Keeps the compiler from dropping the reads.
std::atomic<uint64_t> sink{0};

}  // namespace

std::string ReadMethod::ToString() const {
  return std::string(kernel->name) + ", " + std::to_string(streams) + (streams == 1 ? " stream" : " streams") +
         (prefetch_bytes == 0 ? ", no prefetch" : ", prefetch " + std::to_string(prefetch_bytes) + " B");
}

ReadBandwidth::ReadBandwidth(ComputePool* pool, const std::byte* data, int64_t bytes)
    : pool_(pool), data_(data), part_bytes_(bytes / pool->num_threads() / kPartUnit * kPartUnit) {}

double ReadBandwidth::Measure(const ReadMethod& method) {
  method_ = &method;
  const int64_t start_ns = NowNs();
  pool_->Run([](void* self, int thread) { static_cast<const ReadBandwidth*>(self)->ReadPart(thread); }, this);
  const auto bytes = static_cast<double>(part_bytes_ * pool_->num_threads());
  return bytes * 1e9 / static_cast<double>(NowNs() - start_ns);
}

void ReadBandwidth::ReadPart(int thread) const {
  const kernels::ReadStreamParams params{data_ + thread * part_bytes_, part_bytes_, method_->streams,
                                         method_->prefetch_bytes};
  sink.fetch_xor(method_->kernel->read(params), std::memory_order_relaxed);
}

ReadMethod ReadBandwidth::FindBest() {
  const uint32_t features = kernels::DetectCpuFeatures();
  ReadMethod best;
  double best_rate = -1;
  for (const kernels::ReadStreamKernel& kernel : kernels::ReadStreamKernels()) {
    if ((kernel.features & ~features) != 0) continue;
    for (const int streams : kStreams) {
      for (const int prefetch_bytes : kPrefetchBytes) {
        const ReadMethod method{&kernel, streams, prefetch_bytes};
        const double rate = Measure(method);
        if (rate > best_rate) {
          best_rate = rate;
          best = method;
        }
      }
    }
  }
  return best;
}

int64_t LastLevelCacheBytes() {
  int64_t largest = 0;
  for (const int name : {_SC_LEVEL2_CACHE_SIZE, _SC_LEVEL3_CACHE_SIZE, _SC_LEVEL4_CACHE_SIZE}) {
    largest = std::max<int64_t>(largest, sysconf(name));
  }
  return largest;
}

int64_t BytesBeyondCaches() { return std::max(int64_t{1} << 30, 3 * LastLevelCacheBytes()); }

}  // namespace fastdecode::rworker
