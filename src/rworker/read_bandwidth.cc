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
// The fastest of one pass each are measured again in turns: one pass may have met a slow moment of the machine.
constexpr size_t kFinalists = 4;
constexpr int kFinalRounds = 3;

// Keeps the compiler from dropping the reads.
std::atomic<uint64_t> sink{0};

}  // namespace

std::string ReadMethod::ToString() const {
  return std::string(kernel->name) + ", " + std::to_string(streams) + (streams == 1 ? " stream" : " streams") +
         (prefetch_bytes == 0 ? ", no prefetch" : ", prefetch " + std::to_string(prefetch_bytes) + " B");
}

ReadBandwidth::ReadBandwidth(ComputePool* pool, const std::byte* data, int64_t bytes, int num_parts) : pool_(pool) {
  const int threads = pool->num_threads();
  std::vector<int> of_part(static_cast<size_t>(num_parts), 0);  // threads
  for (int t = 0; t < threads; ++t) ++of_part[static_cast<size_t>(pool->node(t) % num_parts)];
  std::vector<int> seen(static_cast<size_t>(num_parts), 0);
  for (int t = 0; t < threads; ++t) {
    const auto part = static_cast<size_t>(pool->node(t) % num_parts);
    const int64_t size = bytes / num_parts / 64 * 64;
    const int64_t own = size / of_part[part] / kPartUnit * kPartUnit;
    parts_.push_back({data + static_cast<int64_t>(part) * size + seen[part]++ * own, own});
    total_bytes_ += own;
  }
}

double ReadBandwidth::Measure(const ReadMethod& method) {
  method_ = &method;
  const int64_t start_ns = NowNs();
  pool_->Run([](void* self, int thread) { static_cast<const ReadBandwidth*>(self)->ReadPart(thread); }, this);
  return static_cast<double>(total_bytes_) * 1e9 / static_cast<double>(NowNs() - start_ns);
}

void ReadBandwidth::ReadPart(int thread) const {
  const Part& part = parts_[static_cast<size_t>(thread)];
  const kernels::ReadStreamParams params{part.data, part.bytes, method_->streams, method_->prefetch_bytes};
  sink.fetch_xor(method_->kernel->read(params), std::memory_order_relaxed);
}

ReadMethod ReadBandwidth::FindBest(int64_t deadline_ns) {
  const uint32_t features = kernels::DetectCpuFeatures();
  struct Tried {
    ReadMethod method;
    double rate;
  };
  std::vector<Tried> tried;
  const auto late = [&] { return !tried.empty() && NowNs() >= deadline_ns; };
  for (const kernels::ReadStreamKernel& kernel : kernels::ReadStreamKernels()) {
    if ((kernel.features & ~features) != 0) continue;
    for (const int streams : kStreams) {
      for (const int prefetch_bytes : kPrefetchBytes) {
        if (late()) break;
        const ReadMethod method{&kernel, streams, prefetch_bytes};
        tried.push_back({method, Measure(method)});
      }
    }
  }
  const auto faster = [](const Tried& a, const Tried& b) { return a.rate > b.rate; };
  std::sort(tried.begin(), tried.end(), faster);
  tried.resize(std::min(tried.size(), kFinalists));
  for (int round = 0; round < kFinalRounds; ++round) {
    for (Tried& finalist : tried) {
      if (!late()) finalist.rate = std::max(finalist.rate, Measure(finalist.method));
    }
  }
  return std::min_element(tried.begin(), tried.end(), faster)->method;
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
