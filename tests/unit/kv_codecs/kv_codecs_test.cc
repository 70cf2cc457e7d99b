// Names, codes and sizes of formats: the built-in ones and, in this program, the example's.
#include "kernels/kv_codecs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "common/config/config.h"
#include "common/wire/control.h"
#include "kernels/dispatch.h"
#include "rworker/session_plan.h"

namespace fastdecode::kernels {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr uint8_t kE4m3 = 64;

TEST(KvCodecs, NamesAndCodes) {
  EXPECT_EQ(FaultOfUserCodecs(), "");
  EXPECT_THAT(FormatNames(), ElementsAre("f16", "bf16", "int8", "int4", "e4m3"));
  EXPECT_EQ(CodeOf("f16"), 1);
  EXPECT_EQ(CodeOf("bf16"), 2);
  EXPECT_EQ(CodeOf("int8"), 3);
  EXPECT_EQ(CodeOf("int4"), 4);
  EXPECT_EQ(CodeOf("e4m3"), kE4m3);
  EXPECT_EQ(CodeOf("fp8"), 0);
  for (const std::string& name : FormatNames()) EXPECT_EQ(NameOf(CodeOf(name)), name);
  for (const int code : {0, 5, 63, 65, 255}) EXPECT_EQ(NameOf(static_cast<uint8_t>(code)), "") << code;
  EXPECT_EQ(FormatList(), "f16, bf16, int8, int4, e4m3");
  EXPECT_EQ(CodesOf("int8"), (KvCodes{3, 3}));
  EXPECT_EQ(CodesOf("e4m3/int4"), (KvCodes{kE4m3, 4}));
  for (const char* wrong : {"", "/", "int8/", "/int8", "int8/int4/f16", "fp8", "int8/fp8"}) {
    EXPECT_FALSE(CodesOf(wrong).has_value()) << wrong;
  }
  EXPECT_EQ(Describe({3, 3}), "int8");
  EXPECT_EQ(Describe({3, kE4m3}), "int8 keys, e4m3 values");
}

TEST(KvCodecs, WhatIsWrongWithAUserCodecIsNamed) {
  const UserCodec good = *UserCodecs().front();
  const auto fault = [&](auto spoil) {
    UserCodec other = good;
    other.name = "other";
    other.code = 65;
    spoil(other);
    const UserCodec* const both[] = {&good, &other};
    return FaultOfUserCodecs(both);
  };
  EXPECT_EQ(fault([](UserCodec&) {}), "");
  EXPECT_EQ(fault([](UserCodec& c) { c.name = ""; }), "a user codec has no name");
  EXPECT_EQ(fault([](UserCodec& c) { c.name = "int8"; }), "user codec 'int8' has the name of a built-in format");
  EXPECT_EQ(fault([](UserCodec& c) { c.name = "e4m3"; }), "two user codecs have the name 'e4m3'");
  EXPECT_EQ(fault([](UserCodec& c) { c.code = 64; }), "two user codecs have the code 64");
  EXPECT_EQ(fault([](UserCodec& c) { c.code = 4; }), "user codec 'other' has code 4; expected 64 to 255");
  EXPECT_EQ(fault([](UserCodec& c) { c.values.tile_bytes = [](int32_t head_dim) { return int64_t{head_dim} * 5; }; }),
            "user codec 'other' has a tile of 40 bytes at head_dim 8; expected a multiple of 64");
}

TEST(KvCodecs, EveryKernelsTilesAreAsLargeAsTheFormats) {
  for (const AttentionKernel* kernel : AttentionKernels()) {
    for (int32_t head_dim = 8; head_dim <= kMaxHeadDim; head_dim += 8) {
      for (const uint8_t code : {uint8_t{1}, uint8_t{2}, uint8_t{3}, uint8_t{4}, kE4m3}) {
        const KvCodec codec = CodecOf(*kernel, {code, code});
        const KvLayout layout = MakeLayout({code, code}, 2, head_dim, 64);
        EXPECT_EQ(layout.key_tile_bytes, codec.keys.tile_bytes(head_dim)) << kernel->name << " " << head_dim;
        EXPECT_EQ(layout.value_tile_bytes, codec.values.tile_bytes(head_dim)) << kernel->name << " " << head_dim;
        EXPECT_EQ(layout.tile_bytes() % 64, 0);
        EXPECT_EQ(layout.block_bytes(), 2 * 2 * layout.tile_bytes());
      }
    }
  }
}

// From the config's name over the handshake's code to the R-worker's plan.
TEST(KvCodecs, AUserCodecGoesByItsNameAndCode) {
  const std::string path = testing::TempDir() + "/kv_codecs.json";
  const auto load = [&](const std::string& kv_dtype) {
    std::ofstream(path) << R"({"model": {"path": ")" << FASTDECODE_MODELS_DIR << R"(/tinystories-656k"},)"
                        << R"("rworkers": {"count": 1, "kv_dtype": )" << kv_dtype << "}}";
    return LoadConfig(path);
  };
  Result<Config> config = load(R"("e4m3")");
  ASSERT_TRUE(config.ok()) << config.status().ToString();
  EXPECT_EQ(config->rworkers.kv_dtype, (KvDtype{"e4m3", "e4m3"}));
  config = load(R"({"keys": "e4m3", "values": "int4"})");
  ASSERT_TRUE(config.ok()) << config.status().ToString();
  EXPECT_EQ(config->rworkers.kv_dtype, (KvDtype{"e4m3", "int4"}));
  EXPECT_THAT(load(R"("e4m")").status().message(), HasSubstr("\"int4\", \"e4m3\"; nearest: \"e4m3\""));

  SessionOpen open;
  open.num_layers = open.num_heads = open.num_kv_heads = 2;
  open.head_dim = 64;
  open.block_tokens = 32;
  open.max_context = 64;
  open.max_sequences = open.max_rows = open.mini_batches = 1;
  open.heartbeat_ms = 500;
  open.peer_timeout_ms = 3000;
  open.lanes[0] = open.lanes[1] = {1 << 16, 4, 4};
  open.kv_dtype = PackKvDtype(kE4m3, 1);
  Result<rworker::SessionPlan> plan = rworker::PlanSession(open, 1 << 20);
  ASSERT_TRUE(plan.ok()) << plan.status().ToString();
  EXPECT_EQ(rworker::KvTokenBytes(*plan), 2 * 2 * (64 + 2 + 128));
  open.kv_dtype = PackKvDtype(65, 1);
  EXPECT_THAT(rworker::PlanSession(open, 1 << 20).status().message(),
              HasSubstr("kv_dtype 65 is not in this build: asked for as keys; there are f16 (1), bf16 (2), int8 (3), "
                        "int4 (4), e4m3 (64)"));
}

}  // namespace
}  // namespace fastdecode::kernels
