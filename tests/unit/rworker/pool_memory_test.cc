#include "rworker/pool_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <utility>

#include "rworker/host_limits.h"

namespace fastdecode::rworker {
namespace {

TEST(PoolMemory, IsAllThereAlignedAndWritable) {
  for (const int64_t bytes : {int64_t{4096}, int64_t{100000}, int64_t{5} << 20}) {
    for (const int threads : {0, 1, 3}) {
      Result<PoolMemory> memory = PoolMemory::Map(bytes, threads);
      ASSERT_TRUE(memory.ok()) << memory.status().ToString();
      EXPECT_LE(memory->bytes(), bytes);
      EXPECT_GT(memory->bytes(), bytes - (2 << 20));
      EXPECT_EQ(reinterpret_cast<uintptr_t>(memory->data()) % 4096, 0u);
      std::memset(memory->data(), 1, static_cast<size_t>(memory->bytes()));
      PoolMemory moved = std::move(*memory);
      EXPECT_EQ(moved.data()[moved.bytes() - 1], std::byte{1});
    }
  }
}

TEST(PoolMemory, MoreThanThereIsIsRefusedWithTheNumbers) {
  const int64_t available = AvailableMemoryBytes();
  ASSERT_GT(available, 0);
  const Result<PoolMemory> memory = PoolMemory::Map(available * 2, 1);
  ASSERT_FALSE(memory.ok());
  EXPECT_EQ(memory.status().code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(memory.status().message(), testing::HasSubstr(std::to_string(available * 2 >> 21 << 1) + " MiB"));
  EXPECT_FALSE(PoolMemory::Map(0, 1).ok());
  EXPECT_FALSE(PoolMemory::Map(-5, 1).ok());
}

}  // namespace
}  // namespace fastdecode::rworker
