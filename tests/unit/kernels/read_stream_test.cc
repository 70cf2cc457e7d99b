// A bandwidth probe that skips bytes would flatter the machine: the value returned is
// the exclusive or of all 64-bit words, so each one must have been read.
#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "kernels/dispatch.h"

namespace fastdecode::kernels {
namespace {

struct alignas(64) Line {
  uint64_t words[8];
};

TEST(ReadStream, EveryKernelReadsEveryWordOnce) {
  std::mt19937_64 random(1);
  std::vector<Line> data(4 * 8 * 5);
  uint64_t right = 0;
  for (Line& line : data) {
    for (uint64_t& word : line.words) right ^= word = random();
  }
  for (const ReadStreamKernel& kernel : ReadStreamKernels()) {
    if ((kernel.features & ~DetectCpuFeatures()) != 0) continue;
    for (const int streams : {1, 2, 4, 8}) {
      for (const int prefetch_bytes : {0, 1024}) {
        const ReadStreamParams params{data.data(), static_cast<int64_t>(data.size() * sizeof(Line)), streams,
                                      prefetch_bytes};
        EXPECT_EQ(kernel.read(params), right) << kernel.name << ", " << streams << " streams";
      }
    }
  }
}

}  // namespace
}  // namespace fastdecode::kernels
