// How keys and values lie in the cache.
//
// A block of one layer is [num_kv_heads][tiles][K tile | V tile]; a tile is kTileTokens
// tokens of one KV head. So all that a piece of attention reads of a (block, head) is one
// contiguous run, in the order in which it is read.
//
//   keys    dimension by dimension, the tile's tokens side by side. A vector of scores, a
//           token a lane, then needs neither a sum across lanes nor a transposition, and a
//           token's scale is one multiplication of that vector.
//   values  in parts of kPartDims elements of the head, token by token. A vector of the
//           output, an element a lane; the sums of a part stay in registers while its tokens
//           are read in the order of memory.
//
// The head's elements are padded to a multiple of 16 in values, so the last part may be half
// as wide. Formats:
//   f16        K [head_dim][32] of 2 bytes.  V [parts][32][width of the part] of 2 bytes.
//   the others in words of 4 bytes, n elements (bf16: 2, int8: 4, int4: 8) each: K [head_dim / n][32],
//              a word n dimensions of a token; V [parts][32 / n][width of the part], a word n tokens.
//              Element i of a word begins at its bit 16 (i % 2) + (i / 2) (32 / n). So a vector of
//              words gives two vectors of elements for a mask or a shift each, and 16 words of 16 rows
//              of bf16 are a tile of AMX as they lie.
//   int8, int4 value = stored * scale; -127 .. 127 with a scale a token and head; -8 .. 7 with a
//              scale a token, head and part of the head (keys in the same parts). 128 or 8 is added to an
//              element, so that it is not negative. After the words scales [32], int4: [parts][32].
// A scale is a bf16: f32's range, and values are quantised with the scale as it is stored.
// Everything is little-endian; tiles are multiples of 64 bytes.
//
// Errors on real keys and values, and why these scales: docs/kv_formats.md.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace fastdecode::kernels {

inline constexpr int kMaxHeadDim = 256;  // head_dim is a multiple of 8 up to this
inline constexpr int kTileTokens = 32;   // block_tokens is a multiple of this
inline constexpr int kRowAlign = 16;     // elements
inline constexpr int kPartDims = 32;     // elements

enum class KvFormat : uint8_t { kF16, kBf16, kInt8, kInt4 };
inline constexpr int kKvFormats = 4;

inline constexpr std::string_view kKvFormatNames[kKvFormats] = {"f16", "bf16", "int8", "int4"};
inline std::string_view KvFormatName(KvFormat format) { return kKvFormatNames[static_cast<int>(format)]; }

static constexpr int32_t PaddedDim(int32_t head_dim) { return (head_dim + kRowAlign - 1) / kRowAlign * kRowAlign; }

// Parts of a head: kPartDims elements each, the last one what is left.
static constexpr int32_t Parts(int32_t head_dim) { return (head_dim + kPartDims - 1) / kPartDims; }

// Bytes of a tile, the same in every kernel.
static constexpr int64_t KeyTileBytes(KvFormat format, int32_t head_dim) {
  const int64_t elements = int64_t{head_dim} * kTileTokens;
  if (format == KvFormat::kInt8) return elements + kTileTokens * 2;
  if (format == KvFormat::kInt4) return elements / 2 + int64_t{Parts(head_dim)} * kTileTokens * 2;
  return elements * 2;
}
static constexpr int64_t ValueTileBytes(KvFormat format, int32_t head_dim) {
  const int64_t elements = int64_t{PaddedDim(head_dim)} * kTileTokens;
  if (format == KvFormat::kInt8) return elements + kTileTokens * 2;
  if (format == KvFormat::kInt4) return elements / 2 + int64_t{Parts(head_dim)} * kTileTokens * 2;
  return elements * 2;
}

// What one block holds and where.
struct KvLayout {
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
  int32_t block_tokens = 0;  // a multiple of kTileTokens
  int64_t key_tile_bytes = 0;
  int64_t value_tile_bytes = 0;

  int64_t tile_bytes() const { return key_tile_bytes + value_tile_bytes; }
  int64_t head_bytes() const { return block_tokens / kTileTokens * tile_bytes(); }
  int64_t block_bytes() const { return num_kv_heads * head_bytes(); }  // one layer
  // Bytes from a block's start to the K tile of `kv_head` that holds the block's token `in_block`.
  int64_t TileOffset(int32_t kv_head, int32_t in_block) const {
    return kv_head * head_bytes() + in_block / kTileTokens * tile_bytes();
  }
};

}  // namespace fastdecode::kernels
