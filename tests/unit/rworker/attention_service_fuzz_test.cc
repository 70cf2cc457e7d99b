// Random calls, most of them wrong, as a broken or hostile peer would make them. Under
// the sanitizers this shows that nothing outside of the pool is touched; in any build,
// that the books stay right: what fails changes nothing, what succeeds follows the rules.
#include <gtest/gtest.h>

#include "service_fixture.h"

namespace fastdecode::rworker {
namespace {

constexpr AttentionShape kShape{.num_layers = 2, .num_heads = 4, .num_kv_heads = 2, .head_dim = 16};
constexpr SessionLimits kLimits{
    .block_tokens = 32, .max_context = 256, .max_sequences = 4, .max_rows = 3, .max_mini_batches = 2};

class Fuzz {
 public:
  explicit Fuzz(uint64_t seed)
      : random_(seed),
        service_(kShape, kLimits, 2, /*blocks=*/20),
        kv_(static_cast<size_t>(2 * kShape.kv_width()) * 256) {}

  void Call() {
    const KvStats before = service_->stats();
    Status status;
    switch (random_() % 8) {
      case 0:
        status = service_->Free(Sequence());
        EXPECT_TRUE(status.ok());
        break;
      case 1:
        status = service_->FinishPrefill(Sequence(), Number());
        break;
      case 2:
      case 3:
        status = service_->AppendPrefill(Sequence(), Layer(), Number(), Number(), kv_.data());
        break;
      case 4:
        status = BeginStep();
        break;
      default:
        status = Attend();
    }
    const KvStats after = service_->stats();
    if (!status.ok()) {
      ++failures_;
      EXPECT_FALSE(status.message().empty());
      EXPECT_EQ(after.free_blocks, before.free_blocks) << status.ToString();
      EXPECT_EQ(after.sequences, before.sequences) << status.ToString();
    } else {
      ++successes_;
    }
    EXPECT_GE(after.free_blocks, 0);
    EXPECT_LE(after.sequences, kLimits.max_sequences);
  }

  void Finish() {
    for (uint64_t s = 0; s < 7; ++s) EXPECT_TRUE(service_->Free(s).ok());
    EXPECT_EQ(service_->stats().free_blocks, 20);
    EXPECT_EQ(service_->stats().sequences, 0);
    EXPECT_GT(successes_, 100);
    EXPECT_GT(failures_, 100);
  }

 private:
  uint64_t Sequence() { return random_() % 7; }
  int Layer() {
    return static_cast<int>(random_() % 10) == 0 ? static_cast<int>(random_()) : static_cast<int>(random_() % 2);
  }
  int64_t Number() {
    switch (random_() % 12) {
      case 0:
        return static_cast<int64_t>(random_());
      case 1:
        return -static_cast<int64_t>(random_() % 3);
      case 2:
      case 3:
        return static_cast<int64_t>(random_() % 280);
      default:
        return static_cast<int64_t>(random_() % 24);
    }
  }
  int MiniBatch() { return random_() % 10 == 0 ? static_cast<int>(random_()) : static_cast<int>(random_() % 2); }

  Status BeginStep() {
    std::vector<StepRow> rows(random_() % 5);
    for (StepRow& row : rows) row = {Sequence(), static_cast<uint32_t>(Number()), 0};
    const int mini_batch = MiniBatch();
    const Status status = service_->BeginStep(mini_batch, ++step_, rows);
    if (status.ok()) {
      rows_[mini_batch] = rows.size();
      steps_[mini_batch] = step_;
    }
    return status;
  }

  Status Attend() {
    const int mini_batch = MiniBatch();
    const size_t known = mini_batch == 0 || mini_batch == 1 ? static_cast<size_t>(mini_batch) : 0;
    const uint64_t step = random_() % 6 == 0 ? random_() : steps_[known];
    const int64_t rows = random_() % 6 == 0 ? Number() : static_cast<int64_t>(rows_[known]);
    // Exactly as large as a message of that many rows would be, so that a sanitizer sees a read past it.
    const size_t bounded = rows >= 0 && rows <= kLimits.max_rows ? static_cast<size_t>(rows) : 0;
    const std::vector<uint16_t> qkv(bounded * static_cast<size_t>(kShape.qkv_width()), 0x3800);
    std::vector<uint16_t> o(bounded * static_cast<size_t>(kShape.q_width()));
    AttendInfo info;
    return service_->Attend(mini_batch, step, Layer(), qkv.data(), rows, o.data(), &info);
  }

  std::mt19937_64 random_;
  TestService service_;
  const std::vector<uint16_t> kv_;
  uint64_t step_ = 0;
  size_t rows_[2] = {};
  uint64_t steps_[2] = {};
  int successes_ = 0;
  int failures_ = 0;
};

TEST(AttentionServiceFuzz, RandomCallsBreakNothing) {
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    SCOPED_TRACE(seed);
    Fuzz fuzz(seed);
    for (int i = 0; i < 3000; ++i) fuzz.Call();
    fuzz.Finish();
    if (testing::Test::HasFailure()) return;
  }
}

}  // namespace
}  // namespace fastdecode::rworker
