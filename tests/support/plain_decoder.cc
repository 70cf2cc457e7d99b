#include "tests/support/plain_decoder.h"

#include <ATen/ATen.h>

#include <cmath>

#include "common/base/logging.h"

namespace fastdecode::testing {
namespace {

at::Tensor Longs(const std::vector<int64_t>& values) {
  return at::from_blob(const_cast<int64_t*>(values.data()), {static_cast<int64_t>(values.size())}, at::kLong).clone();
}

}  // namespace

at::Tensor PlainDecoder::OnStream(const std::function<at::Tensor()>& work) {
  const auto stream = device_.MakeStream();
  at::Tensor result;
  stream->Launch([&] { result = work(); });
  stream->Synchronize();
  const Status status = stream->TakeError();
  CHECK(status.ok()) << status.ToString();
  return result;
}

at::Tensor PlainDecoder::Prefill(std::span<const std::vector<int32_t>> prompts) {
  return OnStream([&] { return RunPrefill(prompts); });
}

at::Tensor PlainDecoder::Decode(std::span<const int64_t> sequences, std::span<const int32_t> tokens) {
  return OnStream([&] { return RunDecode(sequences, tokens); });
}

void PlainDecoder::Append(Sequence& sequence, size_t layer, const at::Tensor& qkv_rows) {
  const AttentionShape& shape = model_.config().attention;
  const auto part = [&](int64_t begin) {
    const at::Tensor rows =
        qkv_rows.narrow(1, begin, shape.kv_width()).reshape({-1, shape.num_kv_heads, shape.head_dim}).to(at::kFloat);
    return round_ ? rows.to(at::kHalf) : rows;
  };
  const at::Tensor k = part(shape.q_width()), v = part(shape.q_width() + shape.kv_width());
  at::Tensor& ks = sequence.k[layer];
  at::Tensor& vs = sequence.v[layer];
  ks = ks.defined() ? at::cat({ks, k}) : k;
  vs = vs.defined() ? at::cat({vs, v}) : v;
}

// softmax(q k^T / sqrt(head_dim)) v, in f32. -> [1, num_heads * head_dim]
at::Tensor PlainDecoder::Attend(const Sequence& sequence, size_t layer, const at::Tensor& qkv_row) const {
  const AttentionShape& shape = model_.config().attention;
  at::Tensor q = qkv_row.narrow(1, 0, shape.q_width()).to(at::kFloat);
  if (round_) q = q.to(at::kHalf).to(at::kFloat);
  q = q.reshape({shape.num_kv_heads, shape.num_heads / shape.num_kv_heads, shape.head_dim});
  const at::Tensor k = sequence.k[layer].to(at::kFloat).permute({1, 2, 0});  // [kv_heads, head_dim, length]
  const at::Tensor v = sequence.v[layer].to(at::kFloat).transpose(0, 1);     // [kv_heads, length, head_dim]
  const at::Tensor weights = at::softmax(at::matmul(q, k) / std::sqrt(static_cast<double>(shape.head_dim)), -1);
  at::Tensor o = at::matmul(weights, v).reshape({1, shape.q_width()});
  if (round_) o = o.to(at::kHalf);
  return o.to(model_.compute_dtype());
}

at::Tensor PlainDecoder::RunPrefill(std::span<const std::vector<int32_t>> prompts) {
  std::vector<int64_t> ids, positions, lengths, last;
  sequences_.assign(prompts.size(), {});
  const auto layers = static_cast<size_t>(model_.config().attention.num_layers);
  for (size_t i = 0; i < prompts.size(); ++i) {
    sequences_[i].k.resize(layers);
    sequences_[i].v.resize(layers);
    sequences_[i].length = static_cast<int64_t>(prompts[i].size());
    lengths.push_back(sequences_[i].length);
    for (size_t j = 0; j < prompts[i].size(); ++j) {
      ids.push_back(prompts[i][j]);
      positions.push_back(static_cast<int64_t>(j));
    }
    last.push_back(static_cast<int64_t>(ids.size()) - 1);
  }
  at::Tensor x = model_.Embed(Longs(ids));
  for (size_t layer = 0; layer < layers; ++layer) {
    const at::Tensor qkv = model_.AttentionIn(static_cast<int>(layer), x, Longs(positions));
    int64_t row = 0;
    for (size_t i = 0; i < prompts.size(); ++i) {
      Append(sequences_[i], layer, qkv.narrow(0, row, lengths[i]));
      row += lengths[i];
    }
    x = model_.AttentionOut(static_cast<int>(layer), x, model_.PrefillAttention(qkv, lengths));
  }
  return model_.Logits(at::index_select(x, 0, Longs(last)));
}

at::Tensor PlainDecoder::RunDecode(std::span<const int64_t> sequences, std::span<const int32_t> tokens) {
  std::vector<int64_t> positions;
  for (const int64_t s : sequences) positions.push_back(sequences_[static_cast<size_t>(s)].length++);
  at::Tensor x = model_.Embed(Longs({tokens.begin(), tokens.end()}));
  for (size_t layer = 0; layer < static_cast<size_t>(model_.config().attention.num_layers); ++layer) {
    const at::Tensor qkv = model_.AttentionIn(static_cast<int>(layer), x, Longs(positions));
    std::vector<at::Tensor> o;
    for (size_t i = 0; i < sequences.size(); ++i) {
      Sequence& sequence = sequences_[static_cast<size_t>(sequences[i])];
      const at::Tensor row = qkv.narrow(0, static_cast<int64_t>(i), 1);
      Append(sequence, layer, row);
      o.push_back(Attend(sequence, layer, row));
    }
    x = model_.AttentionOut(static_cast<int>(layer), x, at::cat(o));
  }
  return model_.Logits(x);
}

}  // namespace fastdecode::testing
