// How many multiplications a second this CPU's vector units begin when nothing else holds them up.
#pragma once

namespace fastdecode::bench {

// Fused multiply-adds a second of vectors of so many floats, 8 (AVX2 and FMA) or 16 (AVX-512); this CPU must have them.
double FmaRate(int lanes);

}  // namespace fastdecode::bench
