// Our S-part against Hugging Face's greedy runs, by the rule of models/README.md.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <iostream>
#include <span>
#include <utility>

#include "tests/support/greedy_run.h"
#include "tests/support/hf_oracle.h"
#include "tests/support/plain_decoder.h"
#include "tests/support/teacher_forced.h"
#include "tests/unit/model/model_fixture.h"

namespace fastdecode::testing {
namespace {

struct ModelUnderTest {
  const char* folder;
  const char* oracle;
  int threads;
  LayerKind kind;

  friend std::ostream& operator<<(std::ostream& out, const ModelUnderTest& m) { return out << m.folder; }
};

class HuggingFace : public ::testing::TestWithParam<ModelUnderTest> {
 protected:
  void SetUp() override {
    const std::string folder = ModelFolder(GetParam().folder);
    if (!std::filesystem::exists(folder)) {
      GTEST_SKIP() << folder << " is not there; scripts/fetch_smollm2 makes it";
    }
    Result<Oracle> oracle = LoadOracle(ModelFolder(GetParam().oracle));
    ASSERT_TRUE(oracle.ok()) << oracle.status().ToString();
    oracle_ = *oracle;
    Config config = FolderConfig(folder);
    config.max_context = std::min(config.max_context, 2048);
    device_ = MakeCpuRuntime(GetParam().threads);
    model_ = MustLoad(config, *device_, GetParam().kind);
    eos_ = config.model_config.eos_token_ids;
  }

  Oracle oracle_;
  std::unique_ptr<DeviceRuntime> device_;
  std::unique_ptr<Model> model_;
  std::vector<int64_t> eos_;
};

TEST_P(HuggingFace, GreedyIdsAgree) {
  PlainDecoder decoder(*model_, *device_, /*round=*/true);
  std::vector<std::vector<int32_t>> ids;
  const std::span<const OracleCase> cases = oracle_.cases;
  const size_t alone = model_->weight_bytes() < (int64_t{16} << 20) ? 1 : 0;  // one case with nothing beside it
  if (alone > 0) ids = GreedyRun(decoder, cases.first(alone), eos_);
  for (auto& rest : GreedyRun(decoder, cases.subspan(alone), eos_)) ids.push_back(std::move(rest));
  const IdsVerdict verdict = CompareIds(oracle_, ids, F32Limits(oracle_.model));
  for (const std::string& line : verdict.accepted) std::cout << "accepted: " << line << "\n";
  for (const std::string& line : verdict.wrong) ADD_FAILURE() << line;
}

// For models whose file has second_ids.
class HuggingFaceMargins : public HuggingFace {};

TEST_P(HuggingFaceMargins, TeacherForcedMarginsAgree) {
  PlainDecoder decoder(*model_, *device_, /*round=*/true);
  const MarginsVerdict verdict = CompareMargins(oracle_, TeacherForced(decoder, oracle_), F32Limits(GetParam().folder));
  std::cout << "margins: median error " << verdict.median << ", largest " << verdict.largest << ", " << verdict.steps
            << " steps\n";
  EXPECT_TRUE(verdict.agrees) << "median " << verdict.median << ", largest " << verdict.largest;
}

// Without the rounding of Q, K, V and O nothing but the order of sums is left: a limit
// that even a slightly wrong constant in a layer would break.
TEST_P(HuggingFaceMargins, UnroundedMarginsAgreeClosely) {
  PlainDecoder decoder(*model_, *device_, /*round=*/false);
  const MarginsVerdict verdict = CompareMargins(oracle_, TeacherForced(decoder, oracle_), F32Limits(GetParam().folder));
  EXPECT_LE(verdict.median, 1e-4);  // the files have four decimals
  EXPECT_LE(verdict.largest, 2e-3);
  EXPECT_GT(verdict.steps, 1000u);
}

// Computed in bf16 the answers are others, but near: each of the layers' dozen roundings
// adds 2^-9 of its value. Both of the CPU's numbers of threads and libtorch's own operators
// stay within the same limit.
TEST(Bf16, MarginsStayNear) {
  const Result<Oracle> oracle = LoadOracle(ModelFolder("tinystories-656k/expected_many.json"));
  ASSERT_TRUE(oracle.ok()) << oracle.status().ToString();
  Config config = FolderConfig(ModelFolder("tinystories-656k-bf16"));
  config.model.dtype = DType::kBf16;
  for (const auto& [threads, kind] : {std::pair(1, LayerKind::kBest), {2, LayerKind::kBest}, {1, LayerKind::kTorch}}) {
    const auto device = MakeCpuRuntime(threads);
    const auto model = MustLoad(config, *device, kind);
    PlainDecoder decoder(*model, *device, /*round=*/true);
    const MarginsVerdict verdict = CompareMargins(*oracle, TeacherForced(decoder, *oracle), OracleLimits());
    std::cout << "bf16 margins: median error " << verdict.median << ", largest " << verdict.largest << "\n";
    EXPECT_GT(verdict.steps, 1000u);
    EXPECT_LE(verdict.median, 0.05);
    EXPECT_LE(verdict.largest, 0.6);
  }
}

const ModelUnderTest kModels[] = {{"tinystories-656k", "tinystories-656k/expected_many.json", 1, LayerKind::kBest},
                                  {"tinystories-656k", "tinystories-656k/expected_many.json", 2, LayerKind::kBest},
                                  {"tinystories-656k", "tinystories-656k/expected_many.json", 1, LayerKind::kTorch},
                                  {"tinystories-656k-bf16", "tinystories-656k/expected_many.json", 1, LayerKind::kBest},
                                  {"stories260K-hf", "stories260K-hf/expected_many.json", 1, LayerKind::kBest},
                                  {"stories260K-hf", "stories260K-hf/expected_many.json", 3, LayerKind::kBest},
                                  {"tiny-llama3", "tiny-llama3/expected_many.json", 1, LayerKind::kBest},
                                  {"tiny-llama3", "tiny-llama3/expected_many.json", 1, LayerKind::kTorch}};
const ModelUnderTest kSmolLm2 = {"smollm2-135m-instruct", "smollm2_expected.json", 2, LayerKind::kBest};

std::string NameOf(const ::testing::TestParamInfo<ModelUnderTest>& info) {
  std::string name = std::string(info.param.folder) + (info.param.kind == LayerKind::kTorch ? "_torch" : "") + "_" +
                     std::to_string(info.param.threads) + "threads";
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Models, HuggingFace, ::testing::ValuesIn(kModels), NameOf);
INSTANTIATE_TEST_SUITE_P(SmolLm2, HuggingFace, ::testing::Values(kSmolLm2), NameOf);
INSTANTIATE_TEST_SUITE_P(Models, HuggingFaceMargins, ::testing::ValuesIn(kModels), NameOf);

}  // namespace
}  // namespace fastdecode::testing
