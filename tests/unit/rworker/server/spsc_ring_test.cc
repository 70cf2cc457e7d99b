#include "rworker/spsc_ring.h"

#include <gtest/gtest.h>

#include <thread>

namespace fastdecode::rworker {
namespace {

TEST(SpscRing, HoldsItsCapacityInOrder) {
  SpscRing<int, 4> ring;
  int value = 0;
  EXPECT_FALSE(ring.TryPop(value));
  for (int round = 0; round < 10; ++round) {
    for (int i = 0; i < 4; ++i) EXPECT_TRUE(ring.TryPush(round * 4 + i));
    EXPECT_FALSE(ring.TryPush(99));
    for (int i = 0; i < 4; ++i) {
      ASSERT_TRUE(ring.TryPop(value));
      EXPECT_EQ(value, round * 4 + i);
    }
  }
}

TEST(SpscRing, AWaiterGetsEverythingAndThenTheEnd) {
  SpscRing<int, 2> ring;
  int64_t sum = 0;
  std::thread consumer([&] {
    int value = 0;
    while (ring.WaitPop(value)) sum += value;
  });
  for (int i = 1; i <= 50'000;) {
    if (ring.TryPush(int{i})) {
      ++i;
    } else {
      std::this_thread::yield();
    }
  }
  ring.Close();
  consumer.join();
  EXPECT_EQ(sum, int64_t{50'000} * 50'001 / 2);
}

}  // namespace
}  // namespace fastdecode::rworker
