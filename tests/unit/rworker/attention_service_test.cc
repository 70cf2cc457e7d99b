// A sequence's life through the service, and what it refuses.
#include "rworker/attention_service.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "service_fixture.h"

namespace fastdecode::rworker {
namespace {

using testing::HasSubstr;

constexpr AttentionShape kShape{.num_layers = 2, .num_heads = 6, .num_kv_heads = 2, .head_dim = 32};

#define EXPECT_FAILS(expression, expected_code, text) \
  do {                                                \
    const Status failed_ = (expression);              \
    EXPECT_EQ(failed_.code(), expected_code);         \
    EXPECT_THAT(failed_.message(), HasSubstr(text));  \
  } while (false)

void ExpectNear(const std::vector<uint16_t>& o, const std::vector<double>& right) {
  ASSERT_EQ(o.size(), right.size());
  for (size_t i = 0; i < o.size(); ++i) {
    ASSERT_NEAR(double{kernels::HalfToFloat(o[i])}, right[i], 2e-3) << i;  // values up to 2: half a unit is 1e-3
  }
}

TEST(AttentionService, PrefillAndStepsGiveTheRightOutput) {
  TestService service(kShape, kSmallLimits);
  ASSERT_TRUE(Prefill(*service.service, 5, 530).ok());  // more than one range
  ASSERT_TRUE(Prefill(*service.service, 6, 31).ok());
  for (uint32_t step = 0; step < 4; ++step) {  // 6 crosses a block's edge, 7 starts from nothing
    const StepOutput out = RunStep(*service.service, 0, step, {{7, step, 0}, {5, 530 + step, 0}, {6, 31 + step, 0}});
    ExpectNear(out.at(5), RightOutput(kShape, 5, 530 + step));
    ExpectNear(out.at(6), RightOutput(kShape, 6, 31 + step));
    ExpectNear(out.at(7), RightOutput(kShape, 7, step));
  }
  EXPECT_EQ(service->stats().sequences, 3);
  for (const uint64_t sequence : {5u, 6u, 7u, 1000u}) EXPECT_TRUE(service->Free(sequence).ok());
  EXPECT_EQ(service->stats().free_blocks, service->stats().total_blocks);
}

TEST(AttentionService, AReplayedStepGivesTheSameBits) {
  TestService service(kShape, kSmallLimits);
  ASSERT_TRUE(Prefill(*service.service, 1, 40).ok());
  const StepOutput first = RunStep(*service.service, 0, 1, {{1, 40, 0}});
  EXPECT_EQ(RunStep(*service.service, 0, 2, {{1, 40, 0}}), first);
  EXPECT_EQ(service->stats().total_blocks - service->stats().free_blocks, 2);
}

TEST(AttentionService, RewritingAPrefillIsAllowedAGapIsNot) {
  TestService service(kShape, kSmallLimits);
  ASSERT_TRUE(Prefill(*service.service, 1, 20).ok());
  ASSERT_TRUE(Prefill(*service.service, 1, 20, 5).ok());
  const std::vector<uint16_t> kv(static_cast<size_t>(2 * kShape.kv_width()) * 3);
  EXPECT_FAILS(service->AppendPrefill(1, 0, 21, 1, kv.data()), StatusCode::kInvalidArgument, "gap");
  EXPECT_FAILS(service->AppendPrefill(2, 0, 1, 1, kv.data()), StatusCode::kInvalidArgument, "gap");
  EXPECT_FAILS(service->AppendPrefill(1, 2, 0, 1, kv.data()), StatusCode::kInvalidArgument, "layer is 2");
  EXPECT_FAILS(service->AppendPrefill(1, 0, -1, 1, kv.data()), StatusCode::kInvalidArgument, "position");
  EXPECT_FAILS(service->AppendPrefill(1, 0, 0, INT64_MAX, kv.data()), StatusCode::kInvalidArgument, "rows");
  EXPECT_FAILS(service->AppendPrefill(1, 0, 2047, 2, kv.data()), StatusCode::kInvalidArgument, "rows is 2");
  EXPECT_EQ(service->stats().sequences, 1);
}

TEST(AttentionService, AnIncompletePrefillIsNamed) {
  TestService service(kShape, kSmallLimits);
  const std::vector<uint16_t> kv(static_cast<size_t>(2 * kShape.kv_width()) * 3);
  ASSERT_TRUE(service->AppendPrefill(1, 0, 0, 3, kv.data()).ok());
  EXPECT_FAILS(service->FinishPrefill(1, 3), StatusCode::kInvalidArgument, "layer 1 holds 0");
  ASSERT_TRUE(service->AppendPrefill(1, 1, 0, 2, kv.data()).ok());
  EXPECT_FAILS(service->FinishPrefill(1, 3), StatusCode::kInvalidArgument, "layer 1 holds 2");
  EXPECT_FAILS(service->FinishPrefill(2, 3), StatusCode::kNotFound, "sequence 2");
  const std::vector<StepRow> row = {{1, 3, 0}};
  EXPECT_FAILS(service->BeginStep(0, 0, row), StatusCode::kInvalidArgument, "layer 1 holds 2 tokens");
}

TEST(AttentionService, StepsAreCheckedBeforeAnythingChanges) {
  TestService service(kShape, kSmallLimits);
  ASSERT_TRUE(Prefill(*service.service, 1, 16).ok());
  const KvStats before = service->stats();
  const auto begin = [&](std::vector<StepRow> rows, int mini_batch = 0) {
    return service->BeginStep(mini_batch, 9, rows);
  };
  EXPECT_FAILS(begin({{1, 17, 0}}), StatusCode::kInvalidArgument, "wants token 17");
  EXPECT_FAILS(begin({{1, 14, 0}}), StatusCode::kInvalidArgument, "wants token 14");
  EXPECT_FAILS(begin({{1, UINT32_MAX, 0}}), StatusCode::kInvalidArgument, "the context ends at 2048");
  EXPECT_FAILS(begin({{1, 16, 0}, {1, 16, 0}}), StatusCode::kInvalidArgument, "twice");
  EXPECT_FAILS(begin({{8, 0, 0}, {8, 0, 0}}), StatusCode::kInvalidArgument, "twice");
  EXPECT_FAILS(begin({{8, 0, 0}, {9, 4, 0}}), StatusCode::kNotFound, "sequence 9");
  EXPECT_FAILS(begin({{1, 16, 0}}, 2), StatusCode::kInvalidArgument, "mini-batch is 2");
  EXPECT_FAILS(begin({{1, 16, 0}}, -1), StatusCode::kInvalidArgument, "mini-batch is -1");
  EXPECT_FAILS(begin(std::vector<StepRow>(17)), StatusCode::kInvalidArgument, "17 rows");
  EXPECT_EQ(service->stats().free_blocks, before.free_blocks);
  EXPECT_EQ(service->stats().sequences, before.sequences);
  EXPECT_TRUE(begin({{1, 16, 0}}).ok());
}

TEST(AttentionService, RowsMustBelongToTheStepThatBegan) {
  TestService service(kShape, kSmallLimits);
  ASSERT_TRUE(Prefill(*service.service, 1, 4).ok());
  std::vector<uint16_t> qkv(static_cast<size_t>(kShape.qkv_width()) * 2), o(static_cast<size_t>(kShape.q_width()) * 2);
  AttendInfo info;
  const auto attend = [&](int mini_batch, uint64_t step, int layer, int64_t rows) {
    return service->Attend(mini_batch, step, layer, qkv.data(), rows, o.data(), &info);
  };
  EXPECT_FAILS(attend(0, 0, 0, 0), StatusCode::kInvalidArgument, "no step has begun");
  ASSERT_TRUE(service->BeginStep(0, 3, std::vector<StepRow>{{1, 4, 0}}).ok());
  EXPECT_FAILS(attend(0, 4, 0, 1), StatusCode::kInvalidArgument, "step 3 is the one");
  EXPECT_FAILS(attend(0, 3, 2, 1), StatusCode::kInvalidArgument, "layer is 2");
  EXPECT_FAILS(attend(0, 3, -1, 1), StatusCode::kInvalidArgument, "layer is -1");
  EXPECT_FAILS(attend(0, 3, 0, 2), StatusCode::kInvalidArgument, "2 rows for a step of 1");
  EXPECT_FAILS(attend(7, 3, 0, 1), StatusCode::kInvalidArgument, "mini-batch is 7");
  EXPECT_TRUE(attend(0, 3, 0, 1).ok());
  ASSERT_TRUE(service->Free(1).ok());
  EXPECT_FAILS(attend(0, 3, 1, 1), StatusCode::kInvalidArgument, "freed before the step's end");
}

TEST(AttentionService, BlocksAndSequencesRunOutWithNumbers) {
  SessionLimits limits = kSmallLimits;
  limits.max_context = 128;
  limits.max_sequences = 2;
  limits.max_rows = 2;
  TestService service(kShape, limits, 1, /*blocks=*/4);
  ASSERT_TRUE(Prefill(*service.service, 1, 96).ok());
  ASSERT_TRUE(Prefill(*service.service, 2, 32).ok());
  const std::vector<StepRow> rows = {{1, 96, 0}, {2, 32, 0}};
  EXPECT_FAILS(service->BeginStep(0, 0, rows), StatusCode::kResourceExhausted, "2 more KV blocks; 0 of 4");
  EXPECT_FAILS(Prefill(*service.service, 3, 1), StatusCode::kResourceExhausted, "2 sequences");
  ASSERT_TRUE(service->Free(2).ok());
  EXPECT_FAILS(Prefill(*service.service, 3, 33), StatusCode::kResourceExhausted, "2 more KV blocks; 1 of 4");
  EXPECT_EQ(service->stats().sequences, 1) << "a sequence that got nothing is forgotten";
  EXPECT_TRUE(service->BeginStep(0, 1, std::vector<StepRow>{{1, 96, 0}}).ok());
}

TEST(AttentionService, ShapesAndLimitsAreBounded) {
  ComputePool pool(1, false);
  PoolMemory memory = *PoolMemory::Map(1 << 20, 0);
  const auto create = [&](AttentionShape shape, SessionLimits limits) {
    return AttentionService::Create(shape, limits, &memory, TestKernel().kernel, TestKernel().codec(), &pool).status();
  };
  EXPECT_FAILS(create({2, 6, 4, 32}, kSmallLimits), StatusCode::kInvalidArgument, "no multiple of num_kv_heads");
  EXPECT_FAILS(create({2, 6, 2, 33}, kSmallLimits), StatusCode::kUnimplemented, "head_dim 33 ");
  EXPECT_FAILS(create({2, 6, 2, 264}, kSmallLimits), StatusCode::kUnimplemented, "head_dim 264 ");
  EXPECT_FAILS(create({0, 6, 2, 32}, kSmallLimits), StatusCode::kInvalidArgument, "num_layers is 0");
  EXPECT_FAILS(create({2, INT32_MAX, 1, 32}, kSmallLimits), StatusCode::kInvalidArgument, "num_heads");
  EXPECT_FAILS(create({2, 6, 0, 32}, kSmallLimits), StatusCode::kInvalidArgument, "num_kv_heads is 0");
  SessionLimits limits = kSmallLimits;
  limits.max_context = INT32_MAX;
  EXPECT_FAILS(create(kShape, limits), StatusCode::kInvalidArgument, "max_context");
  limits = kSmallLimits;
  limits.max_rows = 17;
  EXPECT_FAILS(create(kShape, limits), StatusCode::kInvalidArgument, "max_rows is 17");
  limits = kSmallLimits;
  limits.block_tokens = 48;
  EXPECT_FAILS(create(kShape, limits), StatusCode::kInvalidArgument, "block_tokens 48 is no multiple of 32");
  limits.block_tokens = 0;
  EXPECT_FAILS(create(kShape, limits), StatusCode::kInvalidArgument, "block_tokens is 0; expected 32 to");
  limits = kSmallLimits;
  limits.max_context = 1 << 20;
  EXPECT_FAILS(create(kShape, limits), StatusCode::kResourceExhausted, "raise kv_memory");
}

// A new session with another geometry takes the same memory over.
TEST(AttentionService, MemoryIsReusedByTheNextSession) {
  constexpr AttentionShape kOther{.num_layers = 3, .num_heads = 2, .num_kv_heads = 2, .head_dim = 64};
  TestService service(kShape, kSmallLimits);
  ASSERT_TRUE(Prefill(*service.service, 1, 100).ok());
  service.service.reset();
  auto next = AttentionService::Create(kOther, kSmallLimits, &service.memory, TestKernel().kernel, TestKernel().codec(),
                                       &service.pool);
  ASSERT_TRUE(next.ok()) << next.status().ToString();
  EXPECT_EQ((*next)->stats().sequences, 0);
  ASSERT_TRUE(Prefill(**next, 1, 40).ok());
  ExpectNear(RunStep(**next, 1, 0, {{1, 40, 0}}).at(1), RightOutput(kOther, 1, 40));
}

}  // namespace
}  // namespace fastdecode::rworker
