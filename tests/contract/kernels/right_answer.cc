#include "right_answer.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <utility>

namespace fastdecode::kernels {
namespace {

constexpr double kUnit = 0x1p-24;  // rounding of f32

bool Sees(const RowQuestion& r, int token) {
  if (token > r.position) return false;
  return r.window == 0 || token > r.position - r.window || token < r.sink_tokens;
}

struct Token {
  int index;
  double score;
  double terms;
  double steps;
};

double Largest(const double* row, int count) {
  double largest = 0;
  for (int d = 0; d < count; ++d) largest = std::max(largest, std::fabs(row[d]));
  return largest;
}

// The root of the sum over tokens of the square of the tile's largest p * (largest |v| of the head).
double StepsOfWeights(const RowQuestion& r, const std::vector<Token>& seen, double log_of_sum) {
  std::map<int, std::pair<int, double>> tiles;  // tokens seen, largest
  for (const Token& token : seen) {
    auto& [count, largest] = tiles[token.index / kTileTokens];
    ++count;
    largest = std::max(largest, std::exp(token.score - log_of_sum) * Largest(r.v + token.index * r.stride, r.head_dim));
  }
  double squares = 0;
  for (const auto& [tile, of] : tiles) squares += of.first * of.second * of.second;
  return std::sqrt(squares);
}

std::vector<Token> Scores(const RowQuestion& r) {
  std::vector<Token> seen;
  for (int t = 0; t < r.length; ++t) {
    if (!Sees(r, t)) continue;
    Token token{t, 0, 0, 0};
    double squares = 0;
    for (int d = 0; d < r.head_dim; ++d) {
      const double term = r.q[d] * r.k[t * r.stride + d];
      token.score += term;
      token.terms += std::fabs(term);
      squares += r.k[t * r.stride + d] * r.k[t * r.stride + d];
    }
    token.steps = Largest(r.q, r.head_dim) * std::sqrt(squares) * std::fabs(r.scale);
    token.score *= r.scale;
    token.terms *= std::fabs(r.scale);
    if (r.soft_cap != 0) token.score = r.soft_cap * std::tanh(token.score / r.soft_cap);
    seen.push_back(token);
  }
  return seen;
}

}  // namespace

RightRow AnswerRow(const RowQuestion& r) {
  const std::vector<Token> seen = Scores(r);
  double largest = r.sink_logit == nullptr ? -std::numeric_limits<double>::infinity() : double{*r.sink_logit};
  for (const Token& token : seen) largest = std::max(largest, token.score);
  double sum = r.sink_logit == nullptr ? 0 : std::exp(double{*r.sink_logit} - largest);
  for (const Token& token : seen) sum += std::exp(token.score - largest);
  RightRow right;
  const auto dim = static_cast<size_t>(r.head_dim);
  for (auto* of : {&right.values, &right.value_of_terms, &right.value_of_steps, &right.value_of_distance,
                   &right.value_spread, &right.value_magnitude}) {
    of->assign(dim, 0);
  }
  right.lse = largest + std::log(sum);
  right.value_steps = StepsOfWeights(r, seen, right.lse);
  for (const Token& token : seen) {
    const double p = std::exp(token.score - largest) / sum;
    right.lse_of_terms += p * token.terms;
    right.lse_of_steps += p * token.steps;
    right.lse_of_distance += p * (largest - token.score);
    for (size_t d = 0; d < dim; ++d) {
      const double v = r.v[token.index * r.stride + static_cast<int64_t>(d)];
      right.values[d] += p * v;
      right.value_magnitude[d] += p * std::fabs(v);
    }
  }
  for (const Token& token : seen) {
    const double p = std::exp(token.score - largest) / sum;
    for (size_t d = 0; d < dim; ++d) {
      const double off = p * std::fabs(r.v[token.index * r.stride + static_cast<int64_t>(d)] - right.values[d]);
      right.value_of_terms[d] += off * token.terms;
      right.value_of_steps[d] += off * token.steps;
      right.value_of_distance[d] += off * (largest - token.score);
      right.value_spread[d] += off;
    }
  }
  return right;
}

double Bound::value(const RightRow& row, int index) const {
  const auto d = static_cast<size_t>(index);
  return score_terms * row.value_of_terms[d] + score_steps * row.value_of_steps[d] + value_steps * row.value_steps +
         2 * kUnit * row.value_of_distance[d] + weight * row.value_spread[d] +
         (sums + products) * row.value_magnitude[d] + 0x1p-60;
}

double Bound::lse(const RightRow& row) const {
  return score_terms * row.lse_of_terms + score_steps * row.lse_of_steps + 2 * kUnit * row.lse_of_distance + weight +
         sums + 2 * kUnit * std::fabs(row.lse);
}

// Each sum of n terms is taken to be off by kRoot * sqrt(n) roundings of the sum of the terms'
// magnitudes: roundings are as good as independent, so that the n of the worst case is not met.
Bound BoundOf(const AttentionKernel& kernel, const BoundedCase& c) {
  constexpr double kRoot = 1;
  constexpr double kExp2 = 2e-7;                  // the kernels' own bound, which a test checks
  const bool exact = kernel.name == "reference";  // sums over dimensions in double precision
  const double tiles = (c.tokens + kTileTokens - 1) / kTileTokens;
  Bound bound;
  // The query with scale * log2(e) folded in (3 roundings), the sum, a format's scale.
  bound.score_terms = kUnit * (3 + (exact ? 1 : kRoot * std::sqrt(c.head_dim)) + (c.keys >= KvFormat::kInt8 ? 1 : 0));
  // 2^x once for the score and once for each maximum that has grown since; the cap is of log2(e) * score.
  bound.weight = kExp2 * (2 + std::log2(tiles)) + 8 * kUnit * c.soft_cap;
  // Numerator and denominator.
  bound.sums = 2 * kUnit * (kRoot * std::sqrt(c.tokens) + 2) + (c.values >= KvFormat::kInt8 ? kUnit : 0);
  // int8, int4: queries and weights of 16 bits, rounded, so off by a uniform error below 2^-16 of the largest; four
  // standard deviations.
  constexpr double kShort = 2.31 * 0x1p-16;
  bound.score_steps = !exact && c.keys >= KvFormat::kInt8 ? kShort : 0;
  bound.value_steps = !exact && c.values >= KvFormat::kInt8 ? kShort : 0;
  // AMX: weights are hi + lo of 8 bits each, hi cut off and lo rounded; so are f16 values, both cut off, and lo * lo,
  // each below 2^-7 of its number, is left out.
  if (kernel.name == "amx" && c.values == KvFormat::kF16 && c.vectors >= 9) bound.products = 0x1p-14 + 0x1p-16;
  if (kernel.name == "amx" && c.values == KvFormat::kBf16 && c.vectors >= (c.head_dim < 128 ? 6 : 4)) {
    bound.products = 0x1p-16;
  }
  return bound;
}

}  // namespace fastdecode::kernels
