// Attention in double precision, and how far f32 arithmetic may be from it.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/attention_kernel.h"

namespace fastdecode::kernels {

// One query row over one head's keys and values: sums over the tokens that it sees.
struct RightRow {
  std::vector<double> values;  // [head_dim]
  double lse = 0;
  // What errors are in proportion to. p is a token's share of the sum of weights.
  double lse_of_terms = 0;             // sum of p * (sum of |q k scale| over the dimensions)
  double lse_of_steps = 0;             // sum of p * (largest |q| * root of the sum of k^2, * scale)
  double lse_of_distance = 0;          // sum of p * |score - largest score|
  std::vector<double> value_of_terms;  // [head_dim] sum of p * |v - value| * (the same)
  std::vector<double> value_of_steps;  // the same with the steps of lse_of_steps
  std::vector<double> value_of_distance;
  std::vector<double> value_spread;     // sum of p * |v - value|
  std::vector<double> value_magnitude;  // sum of p * |v|
  double value_steps = 0;               // root of the sum over tokens of the square of their tile's largest p * |v|
};

struct RowQuestion {
  int head_dim = 0;
  int position = 0;  // of the query row
  int length = 0;    // tokens that there are
  int window = 0;
  int sink_tokens = 0;
  double scale = 0;
  double soft_cap = 0;
  const float* sink_logit = nullptr;
  const double* q = nullptr;  // [head_dim]
  const double* k = nullptr;  // token t's at k + t * stride
  const double* v = nullptr;
  int64_t stride = 0;
};
RightRow AnswerRow(const RowQuestion& question);

// How far a kernel may be off, before its result is rounded to f16.
struct Bound {
  double value(const RightRow& row, int d) const;
  double lse(const RightRow& row) const;

  double score_terms = 0;  // of a score, times the sum of its terms' magnitudes
  double score_steps = 0;  // of a score, times what a query's largest element makes of a step in fixed point
  double weight = 0;       // of a weight, relative
  double value_steps = 0;  // of a value, times what a tile's largest weight makes of one
  double sums = 0;         // of sums over tokens, times the sum of their terms' magnitudes
  double products = 0;     // the same, of the weighted values alone
};
struct BoundedCase {
  KvFormat keys;
  KvFormat values;
  int vectors = 0;  // of a KV head: rows * group
  int head_dim = 0;
  int tokens = 0;
  double soft_cap = 0;
};
Bound BoundOf(const AttentionKernel& kernel, const BoundedCase& c);

}  // namespace fastdecode::kernels
