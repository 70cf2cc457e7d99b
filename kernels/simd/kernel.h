// The table of an instruction set's kernel.
#pragma once

#include "kernels/attention_kernel.h"
#include "kernels/simd/integer.h"
#include "kernels/simd/passes.h"
#include "kernels/simd/softmax.h"
#include "kernels/simd/store.h"
#include "kernels/simd/wide.h"

namespace fastdecode::kernels {
namespace {

template <class I, class Keys>
constexpr KeyOps MakeKeys(int (*store)(const float*, int32_t, int32_t, std::byte*)) {
  return {&Keys::TileBytes, store, &Keys::PackedFloats, &LoadQuery<I, Keys>, &Scores<I, Keys>};
}
template <class I, class Values>
constexpr ValueOps MakeValues(int (*store)(const float*, int32_t, int32_t, std::byte*)) {
  return {&Values::TileBytes, store, &AddValues<I, Values>};
}

template <class I>
constexpr AttentionKernel MakeKernel(std::string_view name, std::string_view description, uint32_t features) {
  using enum KvFormat;
  return {
      name,
      description,
      features,
      {MakeKeys<I, WideKeys<kF16>>(&StoreF16Key), MakeKeys<I, WideKeys<kBf16>>(&StoreBf16Key),
       MakeKeys<I, IntegerKeys<8>>(&StoreIntegerKey<8>), MakeKeys<I, IntegerKeys<4>>(&StoreIntegerKey<4>)},
      {MakeValues<I, WideValues<kF16>>(&StoreF16Value), MakeValues<I, WideValues<kBf16>>(&StoreBf16Value),
       MakeValues<I, IntegerValues<8>>(&StoreIntegerValue<8>), MakeValues<I, IntegerValues<4>>(&StoreIntegerValue<4>)},
      nullptr,
      nullptr,
      &Softmax<I>,
      &AddScaled<I>,
      &StoreRow,
      &WidenF16,
      &Exp2Array<I>,
  };
}

}  // namespace
}  // namespace fastdecode::kernels
