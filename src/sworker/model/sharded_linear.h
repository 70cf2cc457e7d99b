// y = x W^T + b on the CPU, W cut by rows (output features) into one share a compute
// thread, each packed for oneDNN's product once.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace fastdecode {

// Immutable after construction; RunShard from any thread.
class ShardedLinear {
 public:
  // Each of weights [out, in], with its bias [out] or an undefined tensor, is cut at the
  // same places, at multiples of `granule` output features; a shard's output has its rows
  // of weights[0], then those of weights[1], side by side.
  ShardedLinear(const std::vector<at::Tensor>& weights, const std::vector<at::Tensor>& biases, int num_shards,
                int64_t granule);

  // x [rows, in], contiguous -> [rows, num weights * width(shard)]. Not for empty shards.
  at::Tensor RunShard(int shard, const at::Tensor& x) const;
  int64_t begin(int shard) const { return shards_[static_cast<size_t>(shard)].begin; }
  int64_t width(int shard) const { return shards_[static_cast<size_t>(shard)].width; }  // 0: empty

 private:
  struct Shard {
    int64_t begin = 0, width = 0;  // output features of each of the weights
    at::Tensor weight;             // packed, or [n, in] where packing is not to be had
    at::Tensor bias;               // [n] or undefined
    bool packed = false;
  };
  std::vector<Shard> shards_;
};

// The number of rows that a product of `rows` rows is padded to. oneDNN compiles code for
// each new number of rows (milliseconds) and keeps 1024 of them; batches of every size up
// to thousands thus share about a hundred.
int64_t PaddedRows(int64_t rows);

}  // namespace fastdecode
