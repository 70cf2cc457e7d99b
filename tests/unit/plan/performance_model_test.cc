// The performance model against the paper's formulas and against cases done by hand.
#include "plan/performance_model.h"

#include <gtest/gtest.h>

#include <tuple>

#include "plan/hardware.h"

namespace fastdecode::plan {
namespace {

ModelKey Llama7b() {
  return {.hidden_size = 4096,
          .intermediate_size = 11008,
          .vocab_size = 32000,
          .num_heads = 32,
          .num_kv_heads = 32,
          .head_dim = 128,
          .dtype = "f16",
          .device = "cuda"};
}

// T(B) = 1 ms + 10 us B, R = 0.2 us, nothing else costs anything.
ModelProfile Bare() {
  ModelProfile profile;
  profile.key = Llama7b();
  profile.layer = Curve({{1, 1.01e-3, 0}, {1001, 11.01e-3, 0}});
  RWorkerProfile rworker;
  rworker.attend.seconds_per_token = 0.2e-6;
  profile.rworkers.push_back(rworker);
  return profile;
}

Deployment Paper(int batch, int sockets) {
  return {.layers = 32, .mini_batches = 2, .rworkers = sockets, .batch = batch, .output_tokens = 1024};
}

TEST(PipelineTest, OneMiniBatchHidesNothing) {
  const PassTimes times{.first = 1, .middle = 10, .last = 2, .sampling = 4, .rworkers = {{0.5, 3, 0.25}}};
  const PipelineResult result = RunPipeline(3, {times});
  EXPECT_NEAR(1 + 2 * 10 + 2 + 4 + 3 * 3.75, result.step, 1e-9);
  EXPECT_NEAR(27, result.device_busy, 1e-9);
  EXPECT_NEAR(9, result.rworker_busy, 1e-9);
  EXPECT_NEAR(3 * 3.75, result.step - result.device_busy, 1e-9);
}

TEST(PipelineTest, TwoAlternateAndTheSlowerSideIsTheStep) {
  // The device is full: everything else is hidden.
  const PassTimes device{.first = 5, .middle = 10, .last = 5, .sampling = 1, .rworkers = {{0, 2, 0}}};
  EXPECT_NEAR(2 * (5 + 30 + 5 + 1), RunPipeline(4, {device, device}).step, 1e-9);
  // The R-worker is full, but for the head and the first stage behind which nothing hides.
  const PassTimes rworker{.first = 1, .middle = 2, .last = 1, .sampling = 0, .rworkers = {{0, 10, 0}}};
  EXPECT_NEAR(2 * 4 * 10, RunPipeline(4, {rworker, rworker}).step, 1e-9);
  // Neither: a mini-batch's own way, device 2 and wire 10 a layer, is the step.
  const PassTimes wire{.first = 1, .middle = 2, .last = 1, .sampling = 0, .rworkers = {{5, 0, 5}}};
  EXPECT_NEAR(4 * 12, RunPipeline(4, {wire, wire}).step, 1e-9);
}

TEST(PipelineTest, AllWaitForTheSlowestRWorker) {
  const PassTimes times{.first = 1, .middle = 1, .last = 1, .sampling = 1, .rworkers = {{0, 1, 0}, {0, 7, 0}}};
  const PipelineResult result = RunPipeline(1, {times});
  EXPECT_NEAR(1 + 1 + 1 + 7, result.step, 1e-9);
  EXPECT_NEAR(7, result.rworker_busy, 1e-9);
}

TEST(PerformanceModelTest, BalancedRWorkersIsThePapersFormula) {
  // P = B S R / (2 T(B)) with B = 500 a mini-batch, S = 1024: 51.2 ms of R-part for 6 ms.
  const ModelProfile profile = Bare();
  EXPECT_NEAR(500 * 1024 * 0.2e-6 / (2 * 6e-3), BalancedRWorkers(profile, Paper(1000, 1)), 1e-9);
  // It is half of S R E(B).
  EXPECT_NEAR(0.5 * 1024 * 0.2e-6 * Efficiency(profile, 500), BalancedRWorkers(profile, Paper(1000, 1)), 1e-9);
  // A prompt is read from the first step on: mean W is p + g / 2.
  Deployment prompts = Paper(1000, 1);
  prompts.prompt_tokens = 512;
  prompts.output_tokens = 512;
  EXPECT_NEAR(500 * 768 * 0.2e-6 / 6e-3, BalancedRWorkers(profile, prompts), 1e-9);
}

TEST(PerformanceModelTest, LatencyLimitIsThePapersFormula) {
  // 2 N S T(B) <= L: 65536 T(B) <= 131 s gives T <= 2 ms (1.9989), B = 99.
  const ModelProfile profile = Bare();
  EXPECT_EQ(99, BatchForLatency(profile, Paper(0, 1), 131, 4096));
  EXPECT_LE(65536 * profile.layer.At(99), 131);
  EXPECT_GT(65536 * profile.layer.At(100), 131);
  EXPECT_EQ(0, BatchForLatency(profile, Paper(0, 1), 10, 4096));
  EXPECT_EQ(64, BatchForLatency(profile, Paper(0, 1), 1e6, 64));
}

// 6400 T(B) <= 60 s: the 1900 tokens of a prompt are no steps. Its prefill takes of the 60 s.
TEST(PerformanceModelTest, LatencyLimitCountsThePromptsAsPrefill) {
  ModelProfile profile = Bare();
  Deployment prompts = Paper(0, 1);
  prompts.prompt_tokens = 1901;
  prompts.output_tokens = 100;
  EXPECT_EQ(837, BatchForLatency(profile, prompts, 60, 4096));  // T = 9.375 ms
  profile.prefill = Curve({{1, 10e-3, 0}, {1901, 10e-3, 0}});
  EXPECT_EQ(832, BatchForLatency(profile, prompts, 60, 4096));  // 310 ms less: T = 9.327 ms
  EXPECT_EQ(0, BatchForLatency(profile, prompts, 0.3, 4096));
}

TEST(PerformanceModelTest, KneeIsWhereEfficiencyStopsGrowing) {
  // E(B) = B / (1 ms + 10 us B): doubling 512 gives 1.089 times, doubling 256 gives 1.163.
  EXPECT_EQ(512, KneeOfEfficiency(Bare(), 1 << 16));
  EXPECT_EQ(128, KneeOfEfficiency(Bare(), 128));
  EXPECT_EQ(1024, KneeOfEfficiency(Bare(), 1 << 16, 0.05));
}

TEST(PerformanceModelTest, WorkloadLimitIsWhereBothSidesAreEqual) {
  ModelProfile profile = Bare();
  // Two mini-batches of 500 on 4 R-workers: 2 * 6 ms / 0.2 us.
  EXPECT_NEAR(60000, static_cast<double>(WorkloadLimit(profile, Paper(1000, 4))), 1);
  profile.rworkers[0].attend = {.seconds_per_token = 0.2e-6, .seconds_per_row = 8e-6, .seconds_per_call = 1e-3};
  // 125 rows and the call take 2 of the 6 ms.
  EXPECT_NEAR(40000, static_cast<double>(WorkloadLimit(profile, Paper(1000, 4))), 1);
  const StepPrediction step = PredictStep(profile, Paper(1000, 4), 40000.0 / 250);
  EXPECT_NEAR(step.layer_s, step.attend_s, 1e-9);
}

TEST(PerformanceModelTest, AnRWorkerWithoutRowsLimitsNobody) {
  // Two mini-batches of 3 rows: 2 * 1.03 ms / 0.2 us, on 3 R-workers as on more.
  for (const int rworkers : {3, 4, 8}) {
    EXPECT_NEAR(10300, static_cast<double>(WorkloadLimit(Bare(), Paper(6, rworkers))), 1) << rworkers;
  }
}

// Sequences are dealt over all R-workers, not over each mini-batch's first ones: 8 on 8 are one each.
TEST(PerformanceModelTest, EveryRWorkerGetsItsSequences) {
  for (const auto& [batch, rworkers, most] : {std::tuple(8, 8, 1), std::tuple(8, 4, 2), std::tuple(20, 8, 3)}) {
    EXPECT_NEAR(most * 100, PredictStep(Bare(), Paper(batch, rworkers), 100).workload, 1e-9) << batch;
  }
  // T is 1.04 ms, R 5 ms a sequence: with one each the two mini-batches' R-parts go on at the same time.
  EXPECT_NEAR(32 * (1.04e-3 + 5e-3), PredictStep(Bare(), Paper(8, 8), 25000).step_s, 4e-3);
  EXPECT_NEAR(32 * (2 * 5e-3), PredictStep(Bare(), Paper(8, 4), 25000).step_s, 4e-3);
}

// 64 rows of 32 KiB a layer, three quarters of them Q, K and V, over 100 MB/s.
TEST(PerformanceModelTest, TheLinkCarriesNoMoreThanItCan) {
  ModelProfile profile = Bare();
  profile.rworkers[0].wire = Curve({{1, 1e-8, 0}, {1e8 + 1, 1 + 1e-8, 0}});
  for (const int mini_batches : {2, 4, 8}) {
    for (const int rworkers : {1, 8}) {
      Deployment deployment = Paper(64, rworkers);
      deployment.mini_batches = mini_batches;
      const StepPrediction step = PredictStep(profile, deployment, 1);
      const double out_s = 32 * 0.75 * 64 * 32768 / 100e6;
      EXPECT_NEAR(out_s, step.link_busy_s, 1e-4 * out_s);  // an exchange's first byte is its latency
      EXPECT_GE(step.step_s, out_s * (1 - 1e-4)) << mini_batches << " " << rworkers;
      if (mini_batches > 2 && rworkers > 1) {
        EXPECT_EQ("link", step.bound) << mini_batches;
      }
    }
  }
}

TEST(PerformanceModelTest, InjectionIntervalGivesThePeak) {
  // B (S + F) / 2 = limit, of one R-worker with 250 sequences.
  const Deployment deployment = Paper(1000, 4);
  const int interval = InjectionInterval(deployment, 144000);
  EXPECT_EQ(128, interval);
  EXPECT_NEAR(250 * (1024 + interval) / 2.0, 144000, 1);
  EXPECT_EQ(1, InjectionInterval(deployment, 1000));
  EXPECT_EQ(1024, InjectionInterval(deployment, 1000000));
  // Prompts are read from the first step on: 250 (900 + (124 + 24) / 2).
  Deployment prompts = deployment;
  prompts.prompt_tokens = 900;
  prompts.output_tokens = 124;
  EXPECT_EQ(24, InjectionInterval(prompts, 243500));
  EXPECT_EQ(124, InjectionInterval(prompts, 1000000));
}

TEST(PerformanceModelTest, StepIsTheSlowerSide) {
  const ModelProfile profile = Bare();
  // S-bound: R-part 512 * 500 / 16 * 0.2 us = 3.2 ms of 6.
  const StepPrediction device = PredictStep(profile, Paper(1000, 16), 512);
  EXPECT_EQ("S-part", device.bound);
  EXPECT_NEAR(2 * 32 * 6e-3, device.step_s, 2e-3);  // the first R-part has little to hide behind
  EXPECT_NEAR(1000 / device.step_s, device.tokens_per_s, 1e-6);
  // R-bound: 12.8 ms.
  const StepPrediction rworker = PredictStep(profile, Paper(1000, 4), 512);
  EXPECT_EQ("R-part", rworker.bound);
  EXPECT_NEAR(2 * 32 * 12.8e-3, rworker.step_s, 1e-3);
  EXPECT_NEAR(250 * 512, rworker.workload, 1e-6);
}

TEST(PerformanceModelTest, WhatCostsSomethingMakesTheStepLonger) {
  // So many R-workers that the R-part hides behind a pass's first stage too.
  const double bare = PredictDecode(Bare(), Paper(1000, 100)).step_s;
  const auto with = [](auto change) {
    ModelProfile profile = Bare();
    change(profile);
    return PredictDecode(profile, Paper(1000, 100)).step_s;
  };
  const Curve millisecond({{1, 1e-3, 0}, {1000, 1e-3, 0}});
  EXPECT_NEAR(bare + 2 * 32 * 1e-3, with([&](ModelProfile& p) { p.copy_out = millisecond; }), 1e-4);
  EXPECT_NEAR(bare + 2 * 1e-3, with([&](ModelProfile& p) { p.outer = millisecond; }), 1e-4);
  EXPECT_NEAR(bare + 2 * 1e-3, with([&](ModelProfile& p) { p.serving = millisecond; }), 1e-4);
  // Hidden behind the other mini-batch's S-part, then not.
  const auto wire = [&](double seconds) {
    return with([&](ModelProfile& p) { p.rworkers[0].wire = Curve({{1, seconds, 0}, {1e9, seconds, 0}}); });
  };
  EXPECT_NEAR(bare, wire(1e-3), 0.02 * bare);
  EXPECT_GT(wire(20e-3), 2 * bare);
}

TEST(PerformanceModelTest, PrefillTakesTheDeviceAndFillsItsGapsFirst) {
  ModelProfile profile = Bare();
  profile.prefill = Curve({{1, 1e-3, 0}, {1001, 11e-3, 0}});
  Deployment deployment = Paper(1000, 16);
  deployment.prompt_tokens = 102;  // the last of each is decoded
  deployment.output_tokens = 500;
  const SteadyPrediction steady = PredictSteady(profile, deployment);
  EXPECT_NEAR(31 * 2e-3, steady.prefill_latency_s, 1e-9);
  EXPECT_NEAR(31 * 3.01e-3, steady.prefill_s, 1e-9);  // two prompts a step, together
  EXPECT_NEAR(2 * 32 * 6e-3 + steady.prefill_s, steady.step.step_s, 1e-3);
  deployment.rworkers = 1;  // the R-worker holds everything up, and prefill costs nothing
  EXPECT_NEAR(PredictStep(profile, deployment, 352).step_s, PredictSteady(profile, deployment).step.step_s, 1e-9);
}

// 62.5 prompts of 1000 tokens a step: four at a time, as the S-worker does, not all together.
TEST(PerformanceModelTest, NoMorePromptsTogetherThanMayBe) {
  ModelProfile profile = Bare();
  profile.prefill = Curve({{1000, 1e-3, 0}, {4000, 4e-3, 0}, {8000, 16e-3, 0}});
  Deployment deployment = Paper(1000, 16);
  deployment.prompt_tokens = 1001;
  deployment.output_tokens = 16;
  EXPECT_NEAR(31 * 4e-3 * 62.5 / 4, PredictSteady(profile, deployment).prefill_s, 1e-9);
  deployment.prefill_tokens_per_step = 512;  // a longer one alone
  EXPECT_NEAR(31 * 1e-3 * 62.5, PredictSteady(profile, deployment).prefill_s, 1e-9);
}

TEST(PerformanceModelTest, MemoryOfLlama7b) {
  const MemoryNeeds needs = NeededMemory(Llama7b(), Paper(1024, 8), {.block_tokens = 128});
  // 6 738 415 616 parameters (its model card), of which 65 norms of 4096 are left out here.
  EXPECT_EQ((int64_t{6738415616} - 65 * 4096) * 2, needs.weights);
  // 512 KiB a token, 1024 tokens, 128 sequences a socket.
  EXPECT_EQ(int64_t{64} << 30, needs.kv_of_rworker);
  EXPECT_LT(needs.device(), int64_t{24} << 30);
}

TEST(HardwareTest, FollowsTheRooflines) {
  const HardwareFigures figures;
  ASSERT_TRUE(CheckFigures(figures).ok());
  const ModelProfile profile = ProfileOfHardware(figures, Llama7b(), "llama-7b");
  // Weights of a layer, 404.75 MB, at 480 GB/s, 40 us, and 404.75 MFLOP a row at 68.75 TFLOP/s.
  EXPECT_NEAR(404.75e6 / 480e9 + 40e-6 + 256 * 404.75e6 / 68.75e12, profile.layer.At(256), 1e-6);
  // 16 KiB a cached token at 0.6 * 204.8 GB/s.
  EXPECT_NEAR(16384 / 122.88e9, profile.rworkers[0].attend.seconds_per_token, 1e-12);
  HardwareFigures bad = figures;
  bad.link_gbits_per_s = -1;
  EXPECT_NE(std::string::npos, CheckFigures(bad).message().find("--link_gbits_per_s: found -1"));
  Profile file;
  file.models.push_back(profile);
  EXPECT_TRUE(CheckProfile(file).ok()) << CheckProfile(file).message();
}

}  // namespace
}  // namespace fastdecode::plan
