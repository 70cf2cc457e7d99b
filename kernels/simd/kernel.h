// The table of an instruction set's kernel.
#pragma once

#include "kernels/attention_kernel.h"
#include "kernels/simd/keys.h"
#include "kernels/simd/softmax.h"
#include "kernels/simd/store.h"
#include "kernels/simd/values.h"

namespace fastdecode::kernels {
namespace {

template <class I, class Keys>
constexpr KeyOps MakeKeys(int64_t (*tile_bytes)(int32_t), int (*store)(const float*, int32_t, int32_t, std::byte*)) {
  return {tile_bytes, store, &PackedFloats, &LoadQuery<I>, &Scores<I, Keys>};
}
template <class I, class Values>
constexpr ValueOps MakeValues(int64_t (*tile_bytes)(int32_t),
                              int (*store)(const float*, int32_t, int32_t, std::byte*)) {
  return {tile_bytes, store, &AddValues<I, Values>};
}

template <class I>
constexpr AttentionKernel MakeKernel(std::string_view name, std::string_view description, uint32_t features) {
  using enum KvFormat;
  return {
      name,
      description,
      features,
      {MakeKeys<I, ByteKeys<I, kF16>>(&WideKeyBytes, &StoreWideKey<&NarrowF16>),
       MakeKeys<I, ByteKeys<I, kBf16>>(&WideKeyBytes, &StoreWideKey<&NarrowBf16>),
       MakeKeys<I, ByteKeys<I, kInt8>>(&Int8KeyBytes, &StoreInt8Key),
       MakeKeys<I, Int4Keys<I>>(&Int4KeyBytes, &StoreInt4Key)},
      {MakeValues<I, ByteValues<I, kF16>>(&WideValueBytes, &StoreWideValue<&NarrowF16>),
       MakeValues<I, ByteValues<I, kBf16>>(&WideValueBytes, &StoreWideValue<&NarrowBf16>),
       MakeValues<I, ByteValues<I, kInt8>>(&Int8ValueBytes, &StoreInt8Value),
       MakeValues<I, Int4Values<I>>(&Int4ValueBytes, &StoreInt4Value)},
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
