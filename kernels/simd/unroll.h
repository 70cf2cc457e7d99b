// Loops whose index is a constant, so that an array of vectors that it indexes stays in registers.
#pragma once

#include <utility>

#define FD_INLINE __attribute__((always_inline))

namespace fastdecode::kernels {
namespace {

template <typename F, int... I>
FD_INLINE inline void UnrollOver(std::integer_sequence<int, I...>, [[maybe_unused]] F f) {
  (f.template operator()<I>(), ...);
}
// f<0>() .. f<N - 1>()
template <int N, typename F>
FD_INLINE inline void Unroll(F f) {
  UnrollOver(std::make_integer_sequence<int, N>(), f);
}

}  // namespace
}  // namespace fastdecode::kernels
