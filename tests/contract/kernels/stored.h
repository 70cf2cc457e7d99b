// What a cache holds, read by the layout as kernels/kv_format.h words it, in double
// precision and without any of the code under test.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/kv_format.h"

namespace fastdecode::kernels {

// f16, bf16 -> double by the definition of the formats.
double HalfValue(uint16_t half);
double Bf16Value(uint16_t bf16);
// The nearest f16, ties to even; infinity from 65520 on.
uint16_t NearestHalf(double value);

// Bytes of a tile of keys and of one of values.
int64_t StoredKeyBytes(KvFormat format, int head_dim);
int64_t StoredValueBytes(KvFormat format, int head_dim);

// Element d of the head of a tile's token.
double StoredKey(KvFormat format, const std::byte* tile, int head_dim, int token, int d);
double StoredValue(KvFormat format, const std::byte* tile, int head_dim, int token, int d);

// Its scale; 1 for formats that have none.
double StoredKeyScale(KvFormat format, const std::byte* tile, int head_dim, int token, int d);
double StoredValueScale(KvFormat format, const std::byte* tile, int head_dim, int token, int d);

}  // namespace fastdecode::kernels
