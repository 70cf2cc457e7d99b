// One decode attention as a test poses it: dense keys and values, the same cached in
// blocks in random order, and the right answer in double precision.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "kernels/dispatch.h"

namespace fastdecode::kernels {

struct AttentionShapeOfCase {
  int num_kv_heads = 1;
  int group = 1;
  int head_dim = 64;
  int block_tokens = 32;
  int length = 1;
};

// f16 -> double by the definition of the format, apart from the code under test.
double HalfValue(uint16_t half);
// The nearest f16 of a value within its normal range, ties to even.
uint16_t NearestHalf(double value);

class AttentionCase {
 public:
  // q, k, v from a normal distribution with the deviations given; 1/sqrt(head_dim) as scale.
  AttentionCase(const AttentionShapeOfCase& shape, uint64_t seed, double q_deviation = 1, double v_deviation = 1);

  const AttentionShapeOfCase& shape() const { return shape_; }
  int num_heads() const { return shape_.num_kv_heads * shape_.group; }

  // Writable before Cache(): [num_heads, head_dim], [length, num_kv_heads, head_dim] twice.
  std::vector<uint16_t> q, k, v;
  float scale;

  // Stores k and v in blocks, the pool beginning `misalignment` elements past 64-byte
  // alignment; unused tokens and blocks hold NaN.
  void Cache(int misalignment = 0);

  // The kernel's f16 rows, with the context cut every `range_tokens` (0: one range, no
  // merge) and `kv_heads` KV heads a call (0: all).
  std::vector<uint16_t> Attend(const DecodeAttentionKernel& kernel, int range_tokens = 0, int kv_heads = 0) const;

  // Right answer and, for each element, how far off f32 arithmetic and one rounding to f16 may be.
  void Expect(std::vector<double>* values, std::vector<double>* tolerances) const;

  // Attends and fails where a value is out of tolerance or NaN.
  void Check(const DecodeAttentionKernel& kernel, int range_tokens = 0) const;

 private:
  AttentionShapeOfCase shape_;
  std::mt19937_64 random_;
  std::vector<uint16_t> pool_;
  size_t pool_offset_ = 0;
  std::vector<uint32_t> table_;
};

}  // namespace fastdecode::kernels
