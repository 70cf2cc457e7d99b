// The plain kernel: one element at a time, in double precision, by the layout as
// kv_format.h words it. What the others are compared with, and what a CPU without AVX2
// can run.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/attention_kernel.h"
#include "kernels/dispatch.h"
#include "kernels/f16.h"
#include "kernels/quantise.h"

namespace fastdecode::kernels {
namespace {

constexpr float kLargestF16 = 65504.0f;

template <typename T>
T Read(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof(T));
  return value;
}
template <typename T>
void Write(std::byte* at, T value) {
  std::memcpy(at, &value, sizeof(T));
}

// Where an element is: its first byte (but for f16 its word's), the bit in that word, and its scale.
struct Place {
  int64_t at;
  int shift;
  int64_t scale_at;
};

constexpr int ElementBits(KvFormat format) {
  return format == KvFormat::kInt8 ? 8 : format == KvFormat::kInt4 ? 4 : 16;
}
constexpr int32_t ElementsOfWord(KvFormat format) { return 32 / ElementBits(format); }
// Of element e of a word.
constexpr int ShiftOf(KvFormat format, int32_t e) { return e % 2 * 16 + e / 2 * ElementBits(format); }
constexpr uint32_t MaskOf(KvFormat format) { return (1u << ElementBits(format)) - 1; }
constexpr int OffsetOf(KvFormat format) { return 1 << (ElementBits(format) - 1); }
constexpr int32_t ScaleGroups(KvFormat format, int32_t head_dim) {
  return format == KvFormat::kInt8 ? 1 : format == KvFormat::kInt4 ? Parts(head_dim) : 0;
}

template <KvFormat kFormat>
struct KeyPlaces {
  static int64_t Payload(int32_t head_dim) { return int64_t{head_dim} * kTileTokens * ElementBits(kFormat) / 8; }
  static Place Of(int32_t head_dim, int32_t token, int32_t d) {
    if (kFormat == KvFormat::kF16) return {(int64_t{d} * kTileTokens + token) * 2, 0, 0};
    constexpr int32_t kElements = ElementsOfWord(kFormat);
    const int32_t group = kFormat == KvFormat::kInt8 ? 0 : d / kPartDims;
    return {(int64_t{d / kElements} * kTileTokens + token) * 4, ShiftOf(kFormat, d % kElements),
            Payload(head_dim) + (int64_t{group} * kTileTokens + token) * 2};
  }
};

template <KvFormat kFormat>
struct ValuePlaces {
  static int64_t Payload(int32_t head_dim) {
    return int64_t{PaddedDim(head_dim)} * kTileTokens * ElementBits(kFormat) / 8;
  }
  static Place Of(int32_t head_dim, int32_t token, int32_t d) {
    const int32_t part = d / kPartDims;
    const int32_t width = std::min(PaddedDim(head_dim) - part * kPartDims, kPartDims);
    const int64_t part_at = int64_t{part} * kPartDims * kTileTokens * ElementBits(kFormat) / 8;
    if (kFormat == KvFormat::kF16) return {part_at + (int64_t{token} * width + d % kPartDims) * 2, 0, 0};
    constexpr int32_t kElements = ElementsOfWord(kFormat);
    const int32_t group = kFormat == KvFormat::kInt8 ? 0 : part;
    return {part_at + (int64_t{token / kElements} * width + d % kPartDims) * 4, ShiftOf(kFormat, token % kElements),
            Payload(head_dim) + (int64_t{group} * kTileTokens + token) * 2};
  }
};

template <KvFormat kFormat>
uint32_t ReadElement(const std::byte* tile, const Place& place) {
  if (kFormat == KvFormat::kF16) return Read<uint16_t>(tile + place.at);
  return Read<uint32_t>(tile + place.at) >> place.shift & MaskOf(kFormat);
}
template <KvFormat kFormat>
void WriteElement(std::byte* tile, const Place& place, uint32_t element) {
  if (kFormat == KvFormat::kF16) return Write(tile + place.at, static_cast<uint16_t>(element));
  const uint32_t others = Read<uint32_t>(tile + place.at) & ~(MaskOf(kFormat) << place.shift);
  Write(tile + place.at, others | element << place.shift);
}

template <KvFormat kFormat, class Places>
double LoadElement(const std::byte* tile, int32_t head_dim, int32_t token, int32_t d) {
  const Place place = Places::Of(head_dim, token, d);
  const uint32_t element = ReadElement<kFormat>(tile, place);
  if constexpr (kFormat == KvFormat::kF16) return double{HalfToFloat(static_cast<uint16_t>(element))};
  if constexpr (kFormat == KvFormat::kBf16) return double{Bf16ToFloat(static_cast<uint16_t>(element))};
  const double scale = double{Bf16ToFloat(Read<uint16_t>(tile + place.scale_at))};
  return scale * (static_cast<int>(element) - OffsetOf(kFormat));
}

template <KvFormat kFormat, class Places>
int StoreRow(const float* row, int32_t head_dim, int32_t token, std::byte* tile) {
  int beyond = 0;
  for (int32_t d = 0; d < head_dim; ++d) {
    const Place place = Places::Of(head_dim, token, d);
    if constexpr (kFormat == KvFormat::kF16) {
      const bool clipped = std::fabs(row[d]) > kLargestF16 && std::isfinite(row[d]);
      beyond += clipped ? 1 : 0;
      WriteElement<kFormat>(tile, place, FloatToHalf(clipped ? std::copysign(kLargestF16, row[d]) : row[d]));
    } else {
      WriteElement<kFormat>(tile, place, SaturatedBf16(row[d], beyond));
    }
  }
  return beyond;
}

template <KvFormat kFormat, class Places>
int StoreQuantised(const float* row, int32_t head_dim, int32_t token, std::byte* tile) {
  for (int32_t begin = 0, end = 0; begin < head_dim; begin = end) {
    const int64_t scale_at = Places::Of(head_dim, token, begin).scale_at;
    while (end < head_dim && Places::Of(head_dim, token, end).scale_at == scale_at) ++end;
    const float extreme = ExtremeOf(row + begin, end - begin);
    const QuantisedScale scale = kFormat == KvFormat::kInt8 ? ScaleOfInt8(extreme) : ScaleOfInt4(extreme);
    Write(tile + scale_at, scale.stored);
    for (int32_t d = begin; d < end; ++d) {
      const Place place = Places::Of(head_dim, token, d);
      const int quant = Quantise(row[d], scale, OffsetOf(kFormat) - 1) + OffsetOf(kFormat);
      WriteElement<kFormat>(tile, place, static_cast<uint32_t>(quant));
    }
  }
  return 0;
}

template <KvFormat kFormat, class Places>
int64_t TileBytes(int32_t head_dim) {
  return Places::Payload(head_dim) + int64_t{ScaleGroups(kFormat, head_dim)} * kTileTokens * 2;
}

int64_t PackedFloats(int32_t vectors, int32_t head_dim) { return int64_t{vectors} * head_dim; }

void LoadQuery(const QueryArgs& a) {
  for (int32_t r = 0; r < a.rows; ++r) {
    const uint16_t* const q = a.q + r * a.row_stride;
    const int32_t width = a.group * a.head_dim;
    for (int32_t i = 0; i < width; ++i) a.packed[r * width + i] = HalfToFloat(q[i]) * a.scale;
  }
}

template <KvFormat kFormat>
void Scores(const ScoreArgs& a) {
  for (int32_t v = 0; v < a.vectors; ++v) {
    for (int32_t t = 0; t < kTileTokens; ++t) {
      double sum = 0;
      for (int32_t d = 0; d < a.head_dim; ++d) {
        sum +=
            double{a.packed[v * a.head_dim + d]} * LoadElement<kFormat, KeyPlaces<kFormat>>(a.tile, a.head_dim, t, d);
      }
      a.scores[v * kTileTokens + t] = static_cast<float>(sum);
    }
  }
}

template <KvFormat kFormat>
void AddValues(const ValueArgs& a) {
  for (int32_t d = 0; d < a.head_dim; ++d) {
    for (int32_t t = 0; t < a.tokens; ++t) {
      const double value = LoadElement<kFormat, ValuePlaces<kFormat>>(a.tile, a.head_dim, t, d);
      for (int32_t v = 0; v < a.vectors; ++v) {
        float& acc = a.acc[v * PaddedDim(a.head_dim) + d];
        acc = static_cast<float>(double{acc} + double{a.weights[v * kTileTokens + t]} * value);
      }
    }
  }
}

void Softmax(const SoftmaxArgs& a) {
  for (int32_t v = 0; v < a.vectors; ++v) {
    float* const scores = a.scores + v * kTileTokens;
    float max = a.max[v];
    for (int32_t t = 0; t < kTileTokens; ++t) {
      if (a.soft_cap != 0) scores[t] = a.soft_cap * std::tanh(scores[t] / a.soft_cap);
      if ((a.mask >> t & 1u) != 0) max = std::max(max, scores[t]);
    }
    const float factor = std::exp2(a.max[v] - max);
    for (int32_t d = 0; d < a.padded_dim; ++d) a.acc[v * a.padded_dim + d] *= factor;
    for (int i = 0; i < kSumLanes; ++i) a.sums[v * kSumLanes + i] *= factor;
    a.max[v] = max;
    for (int32_t t = 0; t < kTileTokens; ++t) {
      scores[t] = (a.mask >> t & 1u) != 0 ? std::exp2(scores[t] - max) : 0.0f;
      a.sums[v * kSumLanes + t % kSumLanes] += scores[t];
    }
  }
}

void AddScaled(float* acc, const float* x, float factor, int32_t count) {
  for (int32_t i = 0; i < count; ++i) acc[i] = static_cast<float>(double{acc[i]} + double{factor} * double{x[i]});
}

void FinishRow(const float* acc, float divisor, int32_t head_dim, uint16_t* out) {
  for (int32_t d = 0; d < head_dim; ++d) out[d] = FloatToHalf(acc[d] / divisor);
}

void WidenF16(const uint16_t* row, int32_t count, float* out) {
  for (int32_t i = 0; i < count; ++i) out[i] = HalfToFloat(row[i]);
}

void Exp2(const float* x, float* y, int64_t count) {
  for (int64_t i = 0; i < count; ++i) y[i] = std::exp2(x[i]);
}

template <KvFormat kFormat, class Places>
constexpr auto Store() {
  return kFormat == KvFormat::kF16 || kFormat == KvFormat::kBf16 ? &StoreRow<kFormat, Places>
                                                                 : &StoreQuantised<kFormat, Places>;
}
template <KvFormat kFormat>
constexpr KeyOps Keys() {
  using Places = KeyPlaces<kFormat>;
  return {&TileBytes<kFormat, Places>, Store<kFormat, Places>(), &PackedFloats, &LoadQuery, &Scores<kFormat>};
}
template <KvFormat kFormat>
constexpr ValueOps Values() {
  using Places = ValuePlaces<kFormat>;
  return {&TileBytes<kFormat, Places>, Store<kFormat, Places>(), &AddValues<kFormat>};
}

}  // namespace

extern const AttentionKernel kReferenceKernel;
constinit const AttentionKernel kReferenceKernel = {
    "reference",
    "plain C++, one element at a time",
    kNoFeatures,
    {Keys<KvFormat::kF16>(), Keys<KvFormat::kBf16>(), Keys<KvFormat::kInt8>(), Keys<KvFormat::kInt4>()},
    {Values<KvFormat::kF16>(), Values<KvFormat::kBf16>(), Values<KvFormat::kInt8>(), Values<KvFormat::kInt4>()},
    nullptr,
    nullptr,
    &Softmax,
    &AddScaled,
    &FinishRow,
    &WidenF16,
    &Exp2,
};

}  // namespace fastdecode::kernels
