// The engine with everything real but the network: a model's S-part on the CPU's
// stream, and LocalAttention, which answers in an order of its own.
#include "sworker/engine/engine.h"

#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <future>
#include <map>
#include <set>

#include "common/base/logging.h"
#include "tests/support/hf_oracle.h"
#include "tests/support/local_attention.h"

namespace fastdecode {
namespace {

constexpr int kMiniBatches = 2, kRWorkers = 2, kRows = 8;

class Listener final : public EngineListener {
 public:
  void OnPassDone(int mini_batch, std::span<const TokenUpdate> tokens) override {
    Note([&] {
      passes.insert(mini_batch);
      for (const TokenUpdate& token : tokens) ids[token.id].push_back(token.token);
    });
  }
  void OnPrefillDone(std::span<const SequenceId> sequences) override {
    Note([&] { prefilled.insert(sequences.begin(), sequences.end()); });
  }
  void OnFreed(SequenceId sequence) override {
    Note([&] { freed.insert(sequence); });
  }
  void OnRWorkerLost(int rworker, const Status&) override {
    Note([&] { lost.insert(rworker); });
  }
  void OnFatal(const Status& reason) override { ADD_FAILURE() << reason.ToString(); }

  template <typename Condition>
  void Wait(Condition condition) {
    std::unique_lock lock(mutex);
    ASSERT_TRUE(changed.wait_for(lock, std::chrono::seconds(60), condition));
  }

  std::mutex mutex;  // guards all below
  std::condition_variable changed;
  std::map<SequenceId, std::vector<int32_t>> ids;
  std::set<SequenceId> prefilled, freed;
  std::set<int> passes, lost;

 private:
  template <typename Work>
  void Note(Work work) {
    {
      std::lock_guard lock(mutex);
      work();
    }
    changed.notify_all();
  }
};

class EngineTest : public ::testing::TestWithParam<uint64_t> {
 protected:
  EngineTest() {
    const std::string folder = std::string(FASTDECODE_MODELS_DIR) + "/tiny-llama3";
    Result<testing::Oracle> oracle = testing::LoadOracle(folder + "/expected_many.json");
    CHECK(oracle.ok());
    oracle_ = *oracle;
    Config config;
    config.model.path = folder;
    config.model_config = *LoadModelConfig(folder);
    config.max_context = static_cast<int>(config.model_config.max_position_embeddings);
    device_ = MakeCpuRuntime(1);
    model_ = *LoadModel(config, *device_);
    SessionOptions session;
    session.shape = config.model_config.attention;
    session.max_context = config.max_context;
    session.max_sequences = 4 * kRows;
    session.mini_batches = kMiniBatches;
    session.max_rows = kRows;
    attention_ = std::make_unique<LocalAttention>(session, kRWorkers, size_t{64} << 20, GetParam());
    const EngineOptions options{.mini_batches = kMiniBatches,
                                .max_rows = kRows,
                                .max_prefill_tokens = 4 * config.max_context,
                                .max_prefill_prompts = kRows};
    engine_ = std::make_unique<Engine>(options, *model_, *device_, *attention_, timeline_, listener_);
    engine_->Start();
  }
  ~EngineTest() override { engine_->Stop(); }

  // Case i is sequence i + 1, on R-worker i % 2.
  PrefillRequest Prompt(size_t i) const {
    auto request = std::make_shared<Request>();
    request->id = i + 1;
    request->prompt = oracle_.cases[i].prompt_ids;
    return {.request = request, .rworker = static_cast<int>(i % kRWorkers)};
  }

  testing::Oracle oracle_;
  std::unique_ptr<DeviceRuntime> device_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<LocalAttention> attention_;
  Timeline timeline_{kMiniBatches};
  Listener listener_;
  std::unique_ptr<Engine> engine_;
};

TEST_P(EngineTest, PassesGiveHuggingFacesIdsInWhateverOrderEventsCome) {
  constexpr size_t kCases = 8, kSteps = 12;
  std::vector<PrefillRequest> prompts;
  for (size_t i = 0; i < kCases; ++i) prompts.push_back(Prompt(i + 10));
  engine_->Prefill(std::move(prompts));
  listener_.Wait([&] { return listener_.prefilled.size() == kCases; });
  for (size_t step = 0; step < kSteps; ++step) {
    for (int m = 0; m < kMiniBatches; ++m) {
      PassPlan plan;
      for (int r = 0; r < kRWorkers; ++r) {
        for (size_t i = 0; i < kCases; ++i) {
          const bool here = static_cast<int>(i / 4) == m && static_cast<int>((i + 10) % kRWorkers) == r;
          if (here) plan.rows.push_back({.sequence = i + 11, .rworker = r});
        }
      }
      engine_->RunPass(m, std::move(plan));
    }
    listener_.Wait([&] { return listener_.passes.size() == kMiniBatches; });
    std::lock_guard lock(listener_.mutex);
    listener_.passes.clear();
  }
  for (size_t i = 0; i < kCases; ++i) {
    engine_->Release(i + 11);
    const auto& expected = oracle_.cases[i + 10].greedy_ids;
    const auto& ours = listener_.ids[i + 11];
    ASSERT_EQ(ours.size(), kSteps);
    EXPECT_TRUE(std::equal(ours.begin(), ours.end(), expected.begin())) << "case " << i + 10;
  }
  listener_.Wait([&] { return listener_.freed.size() == kCases; });
}

// The remains of a prefill whose prompts are all lost must neither end the process nor
// hold up the next one.
TEST_P(EngineTest, TheNextPrefillFollowsOneThatWasLostWhileItRan) {
  const size_t long_case = oracle_.cases.size() - (oracle_.cases.size() % 2 == 0 ? 2 : 1);  // on R-worker 0
  engine_->Prefill({Prompt(long_case)});
  engine_->Post([this] { attention_->Lose(0); });
  listener_.Wait([&] { return listener_.lost.contains(0); });
  engine_->Prefill({Prompt(11)});  // on R-worker 1
  listener_.Wait([&] { return listener_.prefilled.contains(12); });
  engine_->RunPass(0, {{{.sequence = 12, .rworker = 1}}});
  listener_.Wait([&] { return listener_.passes.contains(0); });
  EXPECT_EQ(listener_.ids[12].front(), oracle_.cases[11].greedy_ids.front());
}

// Whoever plans does not know what of a lost one still runs.
TEST_P(EngineTest, SeveralPrefillsMayWaitForTheRemainsOfALostOne) {
  std::promise<void> all_wait;
  engine_->Post([&] { all_wait.get_future().wait(); });
  engine_->Prefill({Prompt(10)});  // on R-worker 0
  engine_->Post([this] { attention_->Lose(0); });
  engine_->Prefill({Prompt(11)});
  engine_->Prefill({Prompt(13)});
  all_wait.set_value();
  listener_.Wait([&] { return listener_.prefilled.contains(12) && listener_.prefilled.contains(14); });
  EXPECT_FALSE(listener_.prefilled.contains(11));
}

// Nothing is to be prefilled of it: its first pass takes all there is.
TEST_P(EngineTest, APromptOfOneTokenIsReadyAtOnce) {
  auto request = std::make_shared<Request>();
  request->id = 1;
  request->prompt = {oracle_.cases[0].prompt_ids.front()};
  std::vector<PrefillRequest> prompts{{.request = request, .rworker = 0}};
  prompts.push_back(Prompt(11));  // beside one that takes its time
  engine_->Prefill(std::move(prompts));
  engine_->RunPass(0, {{{.sequence = 1, .rworker = 0}}});
  listener_.Wait([&] { return listener_.passes.contains(0); });
  listener_.Wait([&] { return listener_.prefilled.size() == 2; });
  EXPECT_EQ(listener_.ids[1].size(), 1u);
  engine_->Release(1);
  engine_->Release(12);
  listener_.Wait([&] { return listener_.freed.size() == 2; });
  EXPECT_EQ(timeline_.Window().prefill_tokens, oracle_.cases[11].prompt_ids.size() - 1);
}

// The scheduler may not know yet that the R-worker is gone.
TEST_P(EngineTest, APrefillForALostRWorkerEnds) {
  engine_->Post([this] { attention_->Lose(0); });
  listener_.Wait([&] { return listener_.lost.contains(0); });
  engine_->Prefill({Prompt(10)});  // on R-worker 0
  engine_->Prefill({Prompt(11)});
  listener_.Wait([&] { return listener_.prefilled.contains(12); });
  engine_->Release(11);  // answered, though nothing of it is left
  listener_.Wait([&] { return listener_.freed.contains(11); });
  EXPECT_FALSE(listener_.prefilled.contains(11));
}

// Both waited while the engine was busy: what comes after a loss may be the R-worker's next life.
TEST_P(EngineTest, ALossIsToldBeforeTheNextCommandRuns) {
  std::promise<void> all_wait;
  std::promise<bool> told;
  engine_->Post([&] { all_wait.get_future().wait(); });
  engine_->Post([&] { attention_->Lose(0); });
  engine_->Post([&] {
    std::lock_guard lock(listener_.mutex);
    told.set_value(listener_.lost.contains(0));
  });
  all_wait.set_value();
  EXPECT_TRUE(told.get_future().get());
}

INSTANTIATE_TEST_SUITE_P(Seeds, EngineTest, ::testing::Values(1, 2, 3));

}  // namespace
}  // namespace fastdecode
