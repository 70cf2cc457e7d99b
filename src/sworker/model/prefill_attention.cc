#include "sworker/model/prefill_attention.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/scaled_dot_product_attention.h>

#include <algorithm>
#include <atomic>
#include <vector>

namespace fastdecode {
namespace {

// One prompt's query heads that share one KV head.
struct Piece {
  int64_t row = 0, rows = 0;
  int64_t kv_head = 0;
};

// qkv's columns of `heads` heads from column `begin`, as [1, heads, rows, head_dim].
at::Tensor Heads(const at::Tensor& qkv, const Piece& piece, int64_t begin, int64_t heads, int64_t head_dim) {
  return qkv.narrow(0, piece.row, piece.rows)
      .narrow(1, begin, heads * head_dim)
      .view({1, piece.rows, heads, head_dim})
      .transpose(1, 2);
}

// kv_heads of one prompt, from piece.kv_head on. K and V are given once a query head: a
// view where one KV head serves them all.
void Attend(const at::Tensor& qkv, const Piece& piece, int64_t kv_heads, const AttentionShape& shape,
            const at::Tensor& out) {
  const int64_t dim = shape.head_dim, group = shape.num_heads / shape.num_kv_heads, heads = kv_heads * group;
  const int64_t q_begin = piece.kv_head * group * dim, k_begin = shape.q_width() + piece.kv_head * dim;
  const auto repeated = [&](int64_t begin) {
    const at::Tensor x = Heads(qkv, piece, begin, kv_heads, dim);
    return x.unsqueeze(2).expand({1, kv_heads, group, piece.rows, dim}).reshape({1, heads, piece.rows, dim});
  };
  const at::Tensor o = at::scaled_dot_product_attention(Heads(qkv, piece, q_begin, heads, dim), repeated(k_begin),
                                                        repeated(k_begin + shape.kv_width()), /*attn_mask=*/{},
                                                        /*dropout_p=*/0.0, /*is_causal=*/true);
  out.narrow(0, piece.row, piece.rows)
      .narrow(1, q_begin, heads * dim)
      .view({piece.rows, heads, dim})
      .copy_(o.squeeze(0).transpose(0, 1));
}

}  // namespace

at::Tensor CausalAttention(const at::Tensor& qkv, std::span<const int64_t> lengths, const AttentionShape& shape,
                           DeviceRuntime& device) {
  const at::Tensor out = at::empty({qkv.size(0), shape.q_width()}, qkv.options());
  // The CPU's threads take KV heads; a GPU takes a prompt at once.
  const int64_t kv_heads = qkv.is_cpu() ? 1 : shape.num_kv_heads;
  std::vector<Piece> pieces;
  int64_t row = 0;
  for (const int64_t rows : lengths) {
    TORCH_CHECK(rows > 0, "a prompt of ", rows, " rows");
    for (int64_t head = 0; head < shape.num_kv_heads; head += kv_heads) pieces.push_back({row, rows, head});
    row += rows;
  }
  TORCH_CHECK(row == qkv.size(0), "prompts of ", row, " rows together, but ", qkv.size(0), " rows of Q, K, V");
  // The longest first, so that no thread is left with one at the end.
  std::stable_sort(pieces.begin(), pieces.end(), [](const Piece& a, const Piece& b) { return a.rows > b.rows; });
  std::atomic<size_t> next{0};
  device.ParallelShards([&](int) {
    for (size_t i; (i = next.fetch_add(1)) < pieces.size();) Attend(qkv, pieces[i], kv_heads, shape, out);
  });
  return out;
}

}  // namespace fastdecode
