#include "common/base/huge_pages.h"

#include <gtest/gtest.h>

#include <vector>

namespace fastdecode {
namespace {

Status NoPages() { return {StatusCode::kResourceExhausted, "none"}; }

TEST(HugePages, SizesAreWholePages) {
  EXPECT_EQ(WholePages(1), 4096U);
  EXPECT_EQ(WholePages(4096), 4096U);
  EXPECT_EQ(WholePages(4097), 8192U);
  EXPECT_EQ(WholePages(kHugePage - 1), kHugePage);
  EXPECT_EQ(WholePages(kHugePage), kHugePage);
  EXPECT_EQ(WholePages(kHugePage + 1), 2 * kHugePage);
}

TEST(HugePages, AreTriedFirstWhereOneWouldBeFull) {
  const auto asked = [](size_t bytes, bool huge_ok, bool small_ok) {
    std::vector<bool> calls;
    const Status status = MapOnHugePagesIfFree(bytes, [&](bool huge) {
      calls.push_back(huge);
      return (huge ? huge_ok : small_ok) ? OkStatus() : NoPages();
    });
    return std::pair(status.ok(), calls);
  };
  EXPECT_EQ(asked(kHugePage, true, true), std::pair(true, std::vector<bool>{true}));
  EXPECT_EQ(asked(kHugePage, false, true), std::pair(true, std::vector<bool>{true, false}));
  EXPECT_EQ(asked(kHugePage, false, false), std::pair(false, std::vector<bool>{true, false}));
  EXPECT_EQ(asked(kHugePage - 1, true, true), std::pair(true, std::vector<bool>{false}));
}

TEST(HugePages, PrivateMemoryIsZerosToItsLastByteWhateverItLiesOn) {
  for (const bool now : {false, true}) {
    for (const size_t bytes : {size_t{0}, size_t{5000}, kHugePage + 1}) {
      const std::shared_ptr<std::byte[]> memory = MapPrivateMemory(bytes, now);
      ASSERT_NE(memory, nullptr);
      EXPECT_EQ(reinterpret_cast<uintptr_t>(memory.get()) % 4096, 0U);
      for (size_t i = 0; i < bytes; i += 512) ASSERT_EQ(memory[static_cast<ptrdiff_t>(i)], std::byte{0});
      if (bytes > 0) memory[static_cast<ptrdiff_t>(bytes - 1)] = std::byte{1};
    }
  }
  EXPECT_EQ(MapPrivateMemory(size_t{1} << 60, false), nullptr);
}

}  // namespace
}  // namespace fastdecode
