#include "rworker/session_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace fastdecode::rworker {
namespace {

using testing::HasSubstr;

constexpr int64_t kBuffers = int64_t{2} << 30;

SessionOpen Valid() {
  SessionOpen open;
  open.num_layers = 32;
  open.num_heads = 32;
  open.num_kv_heads = 8;
  open.head_dim = 128;
  open.block_tokens = 32;
  open.max_context = 4096;
  open.max_sequences = 1024;
  open.max_rows = 64;
  open.mini_batches = 2;
  open.heartbeat_ms = 500;
  open.peer_timeout_ms = 3000;
  open.kv_dtype = PackKvDtype(1, 1);
  open.lanes[0] = {64 + 64 * 6144 * 2, 4, 5};
  open.lanes[1] = {1 << 20, 8, 16};
  SetText(open.name, "s");
  return open;
}

TEST(SessionPlan, TakesWhatIsAskedForWithLanesSeenFromThisSide) {
  Result<SessionPlan> plan = PlanSession(Valid(), kBuffers);
  ASSERT_TRUE(plan.ok()) << plan.status().ToString();
  EXPECT_EQ(plan->shape, (AttentionShape{32, 32, 8, 128}));
  EXPECT_EQ(plan->limits.max_rows, 64);
  EXPECT_EQ(plan->limits.max_mini_batches, 2);
  EXPECT_EQ(plan->endpoint.lanes[0].recv_slots, 4) << "what S sends, we receive";
  EXPECT_EQ(plan->endpoint.lanes[0].send_slots, 5);
  EXPECT_EQ(plan->endpoint.lanes[1].slot_bytes, 1U << 20);
  EXPECT_EQ(plan->name, "s");
}

TEST(SessionPlan, OneShapeOnlyWhereOneIsNamed) {
  EXPECT_TRUE(PlanSession(Valid(), kBuffers, AttentionShape{32, 32, 8, 128}).ok());
  const Status status = PlanSession(Valid(), kBuffers, AttentionShape{2, 32, 8, 128}).status();
  EXPECT_THAT(status.message(), HasSubstr("another model's shape: 32 layers"));
  EXPECT_THAT(status.message(), HasSubstr("serves only 2 layers"));
}

// 32 layers of 8 KV heads of 128.
TEST(SessionPlan, TakesEachFormatAndKnowsItsBytes) {
  const auto token_bytes = [](uint8_t keys, uint8_t values) {
    SessionOpen open = Valid();
    open.kv_dtype = PackKvDtype(keys, values);
    const Result<SessionPlan> plan = PlanSession(open, kBuffers);
    EXPECT_TRUE(plan.ok()) << plan.status().ToString();
    EXPECT_EQ(plan->kv, (kernels::KvCodes{keys, values}));
    return KvTokenBytes(*plan);
  };
  EXPECT_EQ(token_bytes(1, 1), 32 * 8 * (256 + 256));
  EXPECT_EQ(token_bytes(2, 2), 32 * 8 * (256 + 256));
  EXPECT_EQ(token_bytes(3, 3), 32 * 8 * (130 + 130));
  EXPECT_EQ(token_bytes(4, 4), 32 * 8 * (72 + 72));
  EXPECT_EQ(token_bytes(3, 4), 32 * 8 * (130 + 72));
  EXPECT_EQ(token_bytes(4, 1), 32 * 8 * (72 + 256));
}

TEST(SessionPlan, EachBoundIsNamedWhenPassed) {
  struct Case {
    const char* says;
    StatusCode code;
    void (*spoil)(SessionOpen&);
  };
  constexpr StatusCode kBad = StatusCode::kInvalidArgument;
  constexpr StatusCode kUnknown = StatusCode::kUnimplemented;
  constexpr StatusCode kMemory = StatusCode::kResourceExhausted;
  const Case cases[] = {
      {"num_layers is 0", kBad, [](SessionOpen& o) { o.num_layers = 0; }},
      {"num_layers is 4294967295", kBad, [](SessionOpen& o) { o.num_layers = ~0U; }},
      {"num_heads is 0", kBad, [](SessionOpen& o) { o.num_heads = 0; }},
      {"num_kv_heads is 0", kBad, [](SessionOpen& o) { o.num_kv_heads = 0; }},
      {"num_kv_heads is 33", kBad, [](SessionOpen& o) { o.num_kv_heads = 33; }},
      {"no multiple of num_kv_heads 7", kBad, [](SessionOpen& o) { o.num_kv_heads = 7; }},
      {"head_dim 0 ", kUnknown, [](SessionOpen& o) { o.head_dim = 0; }},
      {"head_dim 4 ", kUnknown, [](SessionOpen& o) { o.head_dim = 4; }},
      {"head_dim is 2147483648", kBad, [](SessionOpen& o) { o.head_dim = 1U << 31; }},
      {"block_tokens is 0", kBad, [](SessionOpen& o) { o.block_tokens = 0; }},
      {"block_tokens is 16, expected 32 to", kBad, [](SessionOpen& o) { o.block_tokens = 16; }},
      {"block_tokens 48 is no multiple of 32", kBad, [](SessionOpen& o) { o.block_tokens = 48; }},
      {"max_context is 4294967295", kBad, [](SessionOpen& o) { o.max_context = ~0U; }},
      {"max_sequences is 0", kBad, [](SessionOpen& o) { o.max_sequences = 0; }},
      {"max_rows is 1025, expected 1 to 1024", kBad, [](SessionOpen& o) { o.max_rows = 1025; }},
      {"mini_batches is 17", kBad, [](SessionOpen& o) { o.mini_batches = 17; }},
      {"heartbeat_ms is 1", kBad, [](SessionOpen& o) { o.heartbeat_ms = 1; }},
      {"peer_timeout_ms is 999", kBad, [](SessionOpen& o) { o.peer_timeout_ms = 999; }},
      {"transport 4 is not in this build", kUnknown, [](SessionOpen& o) { o.transport = 4; }},
      {"kv_dtype 0 is not in this build: asked for as keys", kUnknown, [](SessionOpen& o) { o.kv_dtype = 0; }},
      {"kv_dtype 9 is not in this build: asked for as keys; there are f16 (1), bf16 (2), int8 (3), int4 (4)", kUnknown,
       [](SessionOpen& o) { o.kv_dtype = PackKvDtype(9, 1); }},
      {"kv_dtype 255 is not in this build: asked for as values", kUnknown,
       [](SessionOpen& o) { o.kv_dtype = PackKvDtype(1, 255); }},
      {"decode lane: slot_bytes is 0", kBad, [](SessionOpen& o) { o.lanes[0].slot_bytes = 0; }},
      {"bulk lane: slot_bytes is 9223372036854775808", kBad,
       [](SessionOpen& o) { o.lanes[1].slot_bytes = uint64_t{1} << 63; }},
      {"bulk lane: slot_bytes is no multiple", kBad, [](SessionOpen& o) { o.lanes[1].slot_bytes = 1000; }},
      {"bulk lane: send_slots is 0", kBad, [](SessionOpen& o) { o.lanes[1].send_slots = 0; }},
      {"decode lane: recv_slots is 4294967295", kBad, [](SessionOpen& o) { o.lanes[0].recv_slots = ~0U; }},
      {"does not hold max_rows 65 rows of 12288 bytes", kBad, [](SessionOpen& o) { o.max_rows = 65; }},
      {"message buffers of", kMemory, [](SessionOpen& o) { o.lanes[1].slot_bytes = uint64_t{1} << 30; }},
      {"block tables of", kMemory,
       [](SessionOpen& o) {
         o.max_sequences = 1 << 20;
         o.max_context = 1 << 24;
       }},
  };
  for (const Case& c : cases) {
    SessionOpen open = Valid();
    c.spoil(open);
    Status status = PlanSession(open, kBuffers).status();
    EXPECT_EQ(status.code(), c.code) << c.says;
    EXPECT_THAT(status.message(), HasSubstr(c.says));
  }
}

}  // namespace
}  // namespace fastdecode::rworker
