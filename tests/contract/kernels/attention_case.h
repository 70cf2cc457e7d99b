// One attention as a test poses it: query rows, keys and values, the same cached in blocks
// in random order by the reference kernel's Append, and the right answer out of what was
// stored.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "kernels/decode_attention.h"
#include "kernels/dispatch.h"
#include "right_answer.h"

namespace fastdecode::kernels {

struct CaseSpec {
  int num_kv_heads = 1;
  int group = 1;
  int head_dim = 64;
  int length = 1;  // tokens cached
  int block_tokens = 32;
  KvFormat keys = KvFormat::kF16;
  KvFormat values = KvFormat::kF16;
  int rows = 1;             // query rows
  int first_position = -1;  // of the first; -1: the rows are the last tokens
  int window = 0;
  int sink_tokens = 0;
  float soft_cap = 0;
  bool sink_logits = false;
  float q_deviation = 1;
  float k_deviation = 1;
  float v_deviation = 1;
};
std::string Describe(const CaseSpec& spec);

// Kernels that this CPU can run.
std::vector<const AttentionKernel*> RunnableKernels();

struct Output {
  std::vector<uint16_t> out;  // [rows, heads, head_dim] f16
  std::vector<float> lse;     // [rows, heads]
};
struct Partials {
  int ranges = 0;
  std::vector<float> acc;  // [ranges, rows, heads, head_dim]
  std::vector<float> max;  // [ranges, rows, heads]
  std::vector<float> sum;
};

class AttentionCase {
 public:
  // q, k, v from normal distributions, rounded to f16; 1/sqrt(head_dim) as scale.
  AttentionCase(const CaseSpec& spec, uint64_t seed);

  const CaseSpec& spec() const { return spec_; }
  int num_heads() const { return spec_.num_kv_heads * spec_.group; }
  int first_position() const { return spec_.first_position >= 0 ? spec_.first_position : spec_.length - spec_.rows; }
  size_t At(int row, int head, int d = 0) const {  // in q and Output::out
    return static_cast<size_t>((row * num_heads() + head) * spec_.head_dim + d);
  }
  size_t KvAt(int token, int kv_head, int d = 0) const {
    return static_cast<size_t>((token * spec_.num_kv_heads + kv_head) * spec_.head_dim + d);
  }

  // Writable before Cache(): [rows, heads, head_dim], [length, num_kv_heads, head_dim] twice, f16.
  std::vector<uint16_t> q, k, v;
  float scale;
  std::vector<float> sink_logits;  // [heads], if the spec has them

  // Stores k and v in blocks, the pool beginning `misalignment` bytes (a multiple of 4) past
  // 64-byte alignment; unused tokens and blocks hold NaN.
  void Cache(int misalignment = 0);

  // The whole context in one range, `kv_heads` KV heads a call (0: all).
  Output Attend(const AttentionKernel& kernel, int kv_heads = 0) const;
  // Cut every `range_tokens`.
  Partials AttendRanges(const AttentionKernel& kernel, int range_tokens, int kv_heads = 0) const;
  Output Merge(const AttentionKernel& kernel, const Partials& partials) const;

  // [rows, heads]
  std::vector<RightRow> Right() const;

  // Every runnable kernel: the whole, the ranges (0: one range) and their merge, against double precision.
  void Check(int range_tokens = 0) const;
  void CheckKernel(const AttentionKernel& kernel, const std::vector<RightRow>& right, int range_tokens) const;

 private:
  AttendParams Params(const KvCodec& codec, const std::vector<uint16_t>& query) const;
  void AttendHeads(const AttentionKernel& kernel, AttendParams& p, int kv_heads) const;
  void CheckOutput(const Output& output, const std::vector<RightRow>& right, const Bound& bound) const;
  void CheckPartials(const Partials& partials, const std::vector<RightRow>& right, const Bound& bound) const;

  const CaseSpec spec_;
  std::mt19937_64 random_;
  std::vector<std::byte> pool_;
  size_t pool_offset_ = 0;
  std::vector<uint32_t> table_;
};

}  // namespace fastdecode::kernels
