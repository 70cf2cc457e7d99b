#include "sworker/model/sharded_linear.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <optional>
#include <string_view>

#include "common/base/logging.h"
#include "sworker/device/torch_status.h"

namespace fastdecode {
namespace {

// Packing for this many rows gave the best product at every number of rows from 1 to
// 1000, in f32 and bf16 (Xeon with AMX, 4096 x 4096).
constexpr int64_t kPackedForRows = 256;

using Scalars = c10::List<std::optional<at::Scalar>>;

at::Tensor Pack(const at::Tensor& weight) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("mkldnn::_reorder_linear_weight", "")
                             .typed<at::Tensor(const at::Tensor&, std::optional<int64_t>)>();
  return op.call(weight, kPackedForRows);
}

at::Tensor PackedProduct(const at::Tensor& x, const at::Tensor& packed, const at::Tensor& bias) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("mkldnn::_linear_pointwise", "")
                             .typed<at::Tensor(const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&,
                                               std::string_view, Scalars, std::optional<std::string_view>)>();
  return op.call(x, packed, bias.defined() ? std::optional<at::Tensor>(bias) : std::nullopt, "none", Scalars(),
                 std::nullopt);
}

// Whether this libtorch packs weights of that dtype for this CPU; a log line if not.
bool CanPack(at::ScalarType dtype) {
  const Status status = RunTorch([dtype] {
    const at::Tensor x = at::zeros({16, 64}, dtype);
    PackedProduct(x, Pack(at::zeros({64, 64}, dtype)), at::Tensor());
  });
  LOG_IF(WARNING, !status.ok()) << "no packed " << c10::toString(dtype)
                                << " products on this CPU, plain ones are slower: " << status.message();
  return status.ok();
}

bool CanPackOnce(at::ScalarType dtype) {
  static const bool f32 = CanPack(at::kFloat);
  if (dtype == at::kFloat) return f32;
  static const bool bf16 = CanPack(at::kBFloat16);
  return dtype == at::kBFloat16 && bf16;
}

}  // namespace

ShardedLinear::ShardedLinear(const std::vector<at::Tensor>& weights, const std::vector<at::Tensor>& biases,
                             int num_shards, int64_t granule) {
  const int64_t out = weights.front().size(0), units = (out + granule - 1) / granule;
  const bool packed = CanPackOnce(weights.front().scalar_type());
  for (int64_t i = 0; i < num_shards; ++i) {
    Shard shard;
    shard.begin = std::min(out, units * i / num_shards * granule);
    shard.width = std::min(out, units * (i + 1) / num_shards * granule) - shard.begin;
    if (shard.width > 0) {
      std::vector<at::Tensor> rows, bias;
      for (const at::Tensor& weight : weights) rows.push_back(weight.narrow(0, shard.begin, shard.width));
      for (const at::Tensor& b : biases) {
        if (b.defined()) bias.push_back(b.narrow(0, shard.begin, shard.width));
      }
      // A copy in any case: what was given may be a view of something larger.
      const at::Tensor stacked = at::cat(rows);
      shard.weight = packed ? Pack(stacked) : stacked;
      if (!bias.empty()) shard.bias = at::cat(bias);
      shard.packed = packed;
    }
    shards_.push_back(std::move(shard));
  }
}

at::Tensor ShardedLinear::RunShard(int shard_index, const at::Tensor& x) const {
  const Shard& shard = shards_[static_cast<size_t>(shard_index)];
  return shard.packed
             ? PackedProduct(x, shard.weight, shard.bias)
             : at::linear(x, shard.weight, shard.bias.defined() ? std::optional<at::Tensor>(shard.bias) : std::nullopt);
}

int64_t PaddedRows(int64_t rows) {
  const int64_t multiple = rows <= 8 ? 1 : rows <= 64 ? 8 : rows <= 256 ? 16 : rows <= 1024 ? 32 : 64;
  return (rows + multiple - 1) / multiple * multiple;
}

}  // namespace fastdecode
