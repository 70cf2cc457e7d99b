// The data path's steady state allocates nothing: prefill, steps and frees are counted
// once every path has been taken.
#include <gtest/gtest.h>

#include "service_fixture.h"
#include "tests/support/count_allocations.h"

namespace fastdecode::rworker {
namespace {

TEST(AttentionAllocations, TheSteadyStateMakesNone) {
  constexpr AttentionShape kShape{.num_layers = 2, .num_heads = 8, .num_kv_heads = 2, .head_dim = 64};
  for (const int threads : {1, 3}) {
    TestService service(kShape, kSmallLimits, threads);
    const std::vector<uint16_t> kv(static_cast<size_t>(2 * kShape.kv_width()) * 600);
    const std::vector<uint16_t> qkv(static_cast<size_t>(kShape.qkv_width()) * 3);
    std::vector<uint16_t> o(static_cast<size_t>(kShape.q_width()) * 3);
    std::vector<StepRow> rows(3);
    bool ok = true;
    const auto round = [&](uint64_t first) {
      for (uint64_t s = first; s < first + 3; ++s) {
        for (int layer = 0; layer < 2; ++layer) ok = ok && service->AppendPrefill(s, layer, 0, 600, kv.data()).ok();
        ok = ok && service->FinishPrefill(s, 600).ok();
      }
      for (uint32_t step = 0; step < 20; ++step) {
        for (size_t i = 0; i < 3; ++i) rows[i] = {first + i, 600 + step, 0};
        ok = ok && service->BeginStep(0, step, rows).ok();
        AttendInfo info;
        for (int layer = 0; layer < 2; ++layer) {
          ok = ok && service->Attend(0, step, layer, qkv.data(), 3, o.data(), &info).ok();
        }
      }
      for (uint64_t s = first; s < first + 3; ++s) ok = ok && service->Free(s).ok();
    };
    round(1);
    const uint64_t before = CountedAllocations();
    for (uint64_t i = 1; i < 20; ++i) round(i * 10);
    EXPECT_EQ(CountedAllocations() - before, 0u) << threads << " threads";
    EXPECT_TRUE(ok);
  }
}

}  // namespace
}  // namespace fastdecode::rworker
