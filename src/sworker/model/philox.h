// Philox4x32-10, the counter-based random numbers of Salmon et al., "Parallel Random
// Numbers: As Easy as 1, 2, 3" (SC11).
#pragma once

#include <array>
#include <cstdint>

namespace fastdecode {

std::array<uint32_t, 4> Philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key);

}  // namespace fastdecode
