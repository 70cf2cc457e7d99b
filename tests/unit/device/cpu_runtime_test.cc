#include <ATen/core/Tensor.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

#include "sworker/device/compute_pool.h"
#include "sworker/device/device_runtime.h"

namespace fastdecode {
namespace {

TEST(CpuRuntime, RunsLaunchesInOrderOnAThreadOfItsOwn) {
  auto runtime = MakeCpuRuntime(1);
  auto stream = runtime->MakeStream();
  std::vector<int> order;
  std::atomic<bool> go{false};
  stream->Launch([&] { go.wait(false); });
  constexpr int kLaunches = 500;
  for (int i = 0; i < kLaunches; ++i) {
    stream->Launch([&order, i] { order.push_back(i); });
  }
  EXPECT_TRUE(order.empty());  // asynchronous: nothing ran on this thread
  go = true;
  go.notify_all();
  stream->Synchronize();
  ASSERT_EQ(order.size(), size_t{kLaunches});
  EXPECT_TRUE(std::is_sorted(order.begin(), order.end()));
  EXPECT_TRUE(stream->TakeError().ok());
}

TEST(CpuRuntime, NotifyComesAfterWhatWasLaunched) {
  auto runtime = MakeCpuRuntime(1);
  auto stream = runtime->MakeStream();
  std::atomic<int> done{0}, seen{-1};
  stream->Launch([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    done = 1;
  });
  stream->Notify([&] { seen = done.load(); });
  stream->Synchronize();
  EXPECT_EQ(seen, 1);
}

TEST(CpuRuntime, DestroyingAStreamFinishesItsWork) {
  auto runtime = MakeCpuRuntime(1);
  int runs = 0;
  {
    auto stream = runtime->MakeStream();
    for (int i = 0; i < 3000; ++i) stream->Launch([&] { ++runs; });  // more than the queue holds
  }
  EXPECT_EQ(runs, 3000);
}

TEST(CpuRuntime, KeepsTheFirstErrorUntilItIsTaken) {
  auto runtime = MakeCpuRuntime(2);
  auto stream = runtime->MakeStream();
  stream->Launch([] { at::matmul(at::ones({2, 3}), at::ones({4, 5})); });
  stream->Launch([] { throw std::runtime_error("second"); });
  bool ran = false;
  stream->Launch([&] { ran = true; });
  stream->Synchronize();
  EXPECT_TRUE(ran);
  const Status error = stream->TakeError();
  EXPECT_EQ(error.code(), StatusCode::kInternal);
  EXPECT_NE(error.message().find("cannot be multiplied"), std::string::npos) << error.message();
  EXPECT_EQ(error.message().find('\n'), std::string::npos);
  EXPECT_TRUE(stream->TakeError().ok());
}

TEST(CpuRuntime, SaysOutOfMemoryByName) {
  auto stream = MakeCpuRuntime(1)->MakeStream();
  stream->Launch([] { at::ones({int64_t{1} << 50}); });
  stream->Synchronize();
  EXPECT_EQ(stream->TakeError().code(), StatusCode::kResourceExhausted);
}

TEST(CpuRuntime, ShardsSpreadOverTheThreadsFromWithinAStream) {
  auto runtime = MakeCpuRuntime(2);
  EXPECT_EQ(runtime->num_shards(), 2);
  auto stream = runtime->MakeStream();
  std::vector<std::thread::id> threads(2);
  stream->Launch([&] {
    runtime->ParallelShards([&](int shard) { threads[static_cast<size_t>(shard)] = std::this_thread::get_id(); });
  });
  stream->Synchronize();
  EXPECT_NE(threads[0], threads[1]);
  EXPECT_NE(threads[0], std::this_thread::get_id());
}

TEST(CpuRuntime, MoreThreadsThanCpusStillWork) {
  const int threads = static_cast<int>(AllowedCpus().size()) + 2;
  auto runtime = MakeCpuRuntime(threads);
  auto stream = runtime->MakeStream();
  std::atomic<int> runs{0};
  for (int i = 0; i < 50; ++i) stream->Launch([&] { runtime->ParallelShards([&](int) { ++runs; }); });
  stream->Synchronize();
  EXPECT_EQ(runs, 50 * threads);
  EXPECT_EQ(runtime->description().find("pinned"), std::string::npos) << runtime->description();
}

TEST(CpuRuntime, PinnedMemoryIsAlignedAndZeroedAndOutlivesTheRuntime) {
  std::shared_ptr<std::byte[]> memory;
  {
    auto runtime = MakeCpuRuntime(1);
    memory = runtime->AllocatePinned(10000);
  }
  EXPECT_EQ(reinterpret_cast<uintptr_t>(memory.get()) % 4096, 0u);
  EXPECT_TRUE(std::all_of(memory.get(), memory.get() + 10000, [](std::byte b) { return b == std::byte{0}; }));
  memory[9999] = std::byte{1};
}

TEST(CpuRuntime, MemoryThatThereIsNotIsNone) { EXPECT_EQ(MakeCpuRuntime(1)->AllocatePinned(size_t{1} << 60), nullptr); }

}  // namespace
}  // namespace fastdecode
