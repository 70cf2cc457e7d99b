#include "bench/kv_quality/cached_decoder.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "common/base/logging.h"
#include "kernels/f16.h"

namespace fastdecode::bench {
namespace {

constexpr int kBlockTokens = 32;

at::Tensor Longs(const std::vector<int64_t>& values) {
  return at::from_blob(const_cast<int64_t*>(values.data()), {static_cast<int64_t>(values.size())}, at::kLong).clone();
}

// Rows as they cross the wire.
std::vector<uint16_t> HalfRows(const at::Tensor& rows) {
  const at::Tensor half = rows.to(at::kHalf).contiguous();
  const auto* const data = static_cast<const uint16_t*>(half.const_data_ptr());
  return {data, data + half.numel()};
}

}  // namespace

CachedDecoder::CachedDecoder(const Model& model, DeviceRuntime& device, const kernels::AttentionKernel& kernel,
                             kernels::KvCodes codes, int max_context)
    : model_(model),
      shape_(model.config().attention),
      device_(device),
      kernel_(kernel),
      codec_(kernels::CodecOf(kernel, codes)),
      max_context_(max_context) {}

int64_t CachedDecoder::token_bytes() const {
  const auto layout = kernels::MakeLayout(codec_, shape_.num_kv_heads, shape_.head_dim, kBlockTokens);
  return layout.block_bytes() / kBlockTokens * shape_.num_layers;
}

void CachedDecoder::StartOver(int sequences) {
  const rworker::SessionLimits limits{.block_tokens = kBlockTokens,
                                      .max_context = max_context_,
                                      .max_sequences = sequences,
                                      .max_rows = sequences,
                                      .max_mini_batches = 1};
  service_.reset();
  const int64_t bytes = int64_t{sequences} * (max_context_ + kBlockTokens) * token_bytes() + (int64_t{4} << 20);
  Result<rworker::PoolMemory> memory = rworker::PoolMemory::Map(bytes, 0);
  CHECK(memory.ok()) << memory.status().ToString();
  memory_ = std::move(*memory);
  auto service = rworker::AttentionService::Create(shape_, limits, &memory_, &kernel_, codec_, &pool_);
  CHECK(service.ok()) << service.status().ToString();
  service_ = std::move(*service);
  came_.assign(static_cast<size_t>(sequences), std::vector<Rows>(static_cast<size_t>(shape_.num_layers)));
  lengths_.assign(static_cast<size_t>(sequences), 0);
}

at::Tensor CachedDecoder::OnStream(const std::function<at::Tensor()>& work) {
  const auto stream = device_.MakeStream();
  at::Tensor result;
  stream->Launch([&] { result = work(); });
  stream->Synchronize();
  const Status status = stream->TakeError();
  CHECK(status.ok()) << status.ToString();
  return result;
}

at::Tensor CachedDecoder::Prefill(std::span<const std::vector<int32_t>> prompts) {
  StartOver(static_cast<int>(prompts.size()));
  return OnStream([&] {
    RunPrefill(prompts);
    std::vector<int64_t> sequences;
    std::vector<int32_t> last;
    for (const std::vector<int32_t>& prompt : prompts) {
      sequences.push_back(static_cast<int64_t>(sequences.size()));
      last.push_back(prompt.back());
    }
    return RunDecode(sequences, last);
  });
}

at::Tensor CachedDecoder::Decode(std::span<const int64_t> sequences, std::span<const int32_t> tokens) {
  return OnStream([&] { return RunDecode(sequences, tokens); });
}

// All but each prompt's last token, as the S-worker does.
void CachedDecoder::RunPrefill(std::span<const std::vector<int32_t>> prompts) {
  std::vector<int64_t> ids, positions, lengths, sequences;  // of those that have such tokens
  for (size_t i = 0; i < prompts.size(); ++i) {
    lengths_[i] = static_cast<int64_t>(prompts[i].size()) - 1;
    if (lengths_[i] == 0) continue;
    ids.insert(ids.end(), prompts[i].begin(), prompts[i].end() - 1);
    for (int64_t j = 0; j < lengths_[i]; ++j) positions.push_back(j);
    lengths.push_back(lengths_[i]);
    sequences.push_back(static_cast<int64_t>(i));
  }
  if (sequences.empty()) return;
  at::Tensor x = model_.Embed(Longs(ids));
  for (int layer = 0; layer < shape_.num_layers; ++layer) {
    const at::Tensor qkv = model_.AttentionIn(layer, x, Longs(positions));
    int64_t row = 0;
    for (size_t i = 0; i < sequences.size(); ++i) {
      Rows& kv = Came(sequences[i], layer);
      kv = HalfRows(qkv.narrow(0, row, lengths[i]).narrow(1, shape_.q_width(), 2 * shape_.kv_width()));
      const Status status =
          service_->AppendPrefill(static_cast<uint64_t>(sequences[i]), layer, 0, lengths[i], kv.data());
      CHECK(status.ok()) << status.ToString();
      row += lengths[i];
    }
    x = model_.AttentionOut(layer, x, model_.PrefillAttention(qkv, lengths));
  }
}

at::Tensor CachedDecoder::RunDecode(std::span<const int64_t> sequences, std::span<const int32_t> tokens) {
  std::vector<int64_t> positions;
  std::vector<StepRow> rows;
  for (const int64_t s : sequences) {
    positions.push_back(lengths_[static_cast<size_t>(s)]++);
    rows.push_back({static_cast<uint64_t>(s), static_cast<uint32_t>(positions.back()), 0});
  }
  const auto count = static_cast<int64_t>(rows.size());
  Status status = service_->BeginStep(0, ++step_, rows);
  CHECK(status.ok()) << status.ToString();
  at::Tensor x = model_.Embed(Longs({tokens.begin(), tokens.end()}));
  const at::Tensor o = at::empty({count, shape_.q_width()}, at::kHalf);
  auto* const o_rows = static_cast<uint16_t*>(o.mutable_data_ptr());
  for (int layer = 0; layer < shape_.num_layers; ++layer) {
    const Rows qkv = HalfRows(model_.AttentionIn(layer, x, Longs(positions)));
    rworker::AttendInfo info;
    status = service_->Attend(0, step_, layer, qkv.data(), count, o_rows, &info);
    CHECK(status.ok()) << status.ToString();
    for (int64_t i = 0; i < count; ++i) {
      const auto row = qkv.begin() + i * shape_.qkv_width();
      Rows& kv = Came(sequences[static_cast<size_t>(i)], layer);
      kv.insert(kv.end(), row + shape_.q_width(), row + shape_.qkv_width());
      Compare(kv, &*row, o_rows + i * shape_.q_width());
    }
    x = model_.AttentionOut(layer, x, o.to(model_.compute_dtype()));
  }
  return model_.Logits(x);
}

// softmax(q k^T / sqrt(head_dim)) v of all heads in double precision, against o.
void CachedDecoder::Compare(const Rows& kv, const uint16_t* q, const uint16_t* o) {
  const int64_t width = 2 * shape_.kv_width();
  const int64_t tokens = static_cast<int64_t>(kv.size()) / width;
  const int dim = shape_.head_dim;
  std::vector<double> right(static_cast<size_t>(shape_.q_width()), 0.0), weights(static_cast<size_t>(tokens));
  for (int head = 0; head < shape_.num_heads; ++head) {
    const int kv_head = head / (shape_.num_heads / shape_.num_kv_heads);
    const uint16_t* const k = kv.data() + int64_t{kv_head} * dim;
    const uint16_t* const v = k + shape_.kv_width();
    const auto at = [](const uint16_t* row, int64_t i) { return double{kernels::HalfToFloat(row[i])}; };
    double largest = -1e300;
    for (int64_t t = 0; t < tokens; ++t) {
      double score = 0;
      for (int d = 0; d < dim; ++d) score += at(q, int64_t{head} * dim + d) * at(k, t * width + d);
      weights[static_cast<size_t>(t)] = score / std::sqrt(static_cast<double>(dim));
      largest = std::max(largest, weights[static_cast<size_t>(t)]);
    }
    double sum = 0;
    for (double& weight : weights) sum += weight = std::exp(weight - largest);
    for (int64_t t = 0; t < tokens; ++t) {
      const double share = weights[static_cast<size_t>(t)] / sum;
      for (int d = 0; d < dim; ++d) right[static_cast<size_t>(head * dim + d)] += share * at(v, t * width + d);
    }
  }
  double power = 0;
  for (const double x : right) power += x * x;
  const double rms = std::sqrt(power / static_cast<double>(right.size()));
  for (size_t i = 0; i < right.size(); ++i) {
    const double error = std::fabs(double{kernels::HalfToFloat(o[i])} - right[i]) / rms;
    errors_.sum += error;
    errors_.largest = std::max(errors_.largest, error);
    ++errors_.elements;
  }
}

}  // namespace fastdecode::bench
