#include "sworker/engine/rows_f16.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <limits>

namespace fastdecode {
namespace {

struct Host {
  explicit Host(int64_t rows, int64_t width) : tensor(at::full({rows, width}, 7.0, at::kHalf)) {}
  std::byte* row(int64_t r) { return static_cast<std::byte*>(tensor[r].data_ptr()); }
  at::Tensor tensor;
};

TEST(RowsF16, SlicesGoOutAndComeBack) {
  const at::Tensor data = at::randn({5, 8}).to(at::kHalf).to(at::kFloat);
  Host host(5, 8);
  const std::vector<HostRows> slices = {{.rworker = 0, .row_begin = 0, .rows = 2, .data = host.row(0)},
                                        {.rworker = 2, .row_begin = 2, .rows = 3, .data = host.row(2)}};
  at::Tensor row_max;
  ScatterRows(data, slices, 8, &row_max);
  at::Tensor back;
  GatherRows(slices, 5, 8, at::TensorOptions().dtype(at::kFloat), &back);
  EXPECT_TRUE(back.equal(data));
  EXPECT_TRUE(row_max.equal(at::amax(at::abs(data), {1})));
}

TEST(RowsF16, LostSlicesAreNeitherWrittenNorLeftUndefined) {
  const at::Tensor data = at::randn({4, 8});
  Host host(4, 8);
  const std::vector<HostRows> slices = {{.row_begin = 0, .rows = 1, .data = host.row(0)},
                                        {.rworker = 1, .row_begin = 1, .rows = 3, .lost = true}};
  at::Tensor row_max, back;
  ScatterRows(data, slices, 8, &row_max);
  EXPECT_TRUE(host.tensor.narrow(0, 1, 3).equal(at::full({3, 8}, 7.0, at::kHalf)));
  GatherRows(slices, 4, 8, at::TensorOptions().dtype(at::kFloat), &back);
  EXPECT_EQ(back.narrow(0, 1, 3).abs().sum().item<float>(), 0.0f);
}

TEST(RowsF16, BeyondF16sRangeIsSaturatedAndSeen) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const float inf = std::numeric_limits<float>::infinity();
    const at::Tensor data = at::tensor({1.0f, -7e4f, 3e38f, -inf}).view({4, 1}).to(type);
    Host host(4, 1);
    at::Tensor row_max;
    ScatterRows(data, std::vector<HostRows>{{.rows = 4, .data = host.row(0)}}, 1, &row_max);
    EXPECT_TRUE(host.tensor.isfinite().all().item<bool>()) << type;
    EXPECT_FALSE(row_max[0].item<float>() > kMaxF16);
    for (int row = 1; row < 4; ++row) EXPECT_TRUE(row_max[row].item<float>() > kMaxF16) << type << " row " << row;
  }
}

TEST(RowsF16, TheLargestOfARowIsKeptOverLayers) {
  Host host(2, 2);
  const std::vector<HostRows> slices = {{.rows = 2, .data = host.row(0)}};
  at::Tensor row_max;
  ScatterRows(at::tensor({9.0f, 1.0f, 1.0f, 1.0f}).view({2, 2}), slices, 2, &row_max);
  ScatterRows(at::tensor({2.0f, 2.0f, 3.0f, -4.0f}).view({2, 2}), slices, 2, &row_max);
  EXPECT_TRUE(row_max.equal(at::tensor({9.0f, 4.0f})));
}

}  // namespace
}  // namespace fastdecode
