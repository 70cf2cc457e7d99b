// What all of AMX's formats share: how the eight tiles are set up, and how query vectors are taken.
//
// Tiles 0 .. 3: sums; 4, 5: A, the query or the weights; these have a row for each query vector of a
// pass. 6, 7: B, keys or values, 16 rows of 16 words of two bf16, whose products one multiplication sums up.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "kernels/kv_format.h"
#include "kernels/simd/unroll.h"

namespace fastdecode::kernels {
namespace {

constexpr int kTileRows = 16;  // query vectors of a pass, at most
constexpr int kRowBytes = 64;
constexpr int kHalves = 2;                    // of a tile's tokens or of a part's elements, 16 each
constexpr int kWordRow = kTileTokens * 4;     // bytes of a row of words in keys, and in a whole part of values
constexpr int kBlock = kTileRows * kWordRow;  // that a multiplication of both halves takes

// GCC's tile loads do not say that they read memory: what was stored must be in it by then.
FD_INLINE inline void StoresBefore() { __asm__ volatile("" ::: "memory"); }

// Query vectors of a pass.
constexpr int VectorsOfPass(int vectors) {
  const int passes = (vectors + kTileRows - 1) / kTileRows;
  return (vectors + passes - 1) / passes;
}

// Calls visit(first vector, vectors of the pass, how many of these an earlier pass has had): the last
// pass starts early enough to have as many as the others.
template <class Visit>
FD_INLINE inline void ForTilePasses(int vectors, Visit visit) {
  const int each = VectorsOfPass(vectors);
  for (int done = 0; done < vectors; done += each) {
    const int begin = done + each <= vectors ? done : vectors - each;
    visit(begin, each, done - begin);
  }
}

FD_INLINE inline void ZeroSums() {
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
}

// What the tiles 0 .. 3 hold.
struct alignas(64) Sums {
  float of[4][kTileRows][16];
};
FD_INLINE inline void StoreSums(Sums& sums) {
  _tile_stored(0, sums.of[0], kRowBytes);
  _tile_stored(1, sums.of[1], kRowBytes);
  _tile_stored(2, sums.of[2], kRowBytes);
  _tile_stored(3, sums.of[3], kRowBytes);
}

}  // namespace
}  // namespace fastdecode::kernels
