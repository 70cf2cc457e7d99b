#include "rworker/self_test/barrier.h"

#include <algorithm>
#include <array>

#include "common/base/clock.h"

namespace fastdecode::rworker {
namespace {

constexpr int kBatches = 51;
constexpr int kCalls = 100;  // of a batch: some microseconds each, above the clock's resolution

}  // namespace

double MeasureBarrierUs(ComputePool* pool) {
  std::array<double, kBatches> us{};
  for (double& batch : us) {
    const int64_t start_ns = NowNs();
    for (int i = 0; i < kCalls; ++i) pool->Run([](void*, int) {}, nullptr);
    batch = static_cast<double>(NowNs() - start_ns) / 1e3 / kCalls;
  }
  std::nth_element(us.begin(), us.begin() + kBatches / 2, us.end());
  return us[kBatches / 2];
}

}  // namespace fastdecode::rworker
