// The seeds of a test that runs many: all that is random follows from one, and one that failed is
// run again by its number.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <string>

namespace fastdecode {

struct Seeds {
  uint64_t first = 0;
  uint64_t count = 0;
};

// --first=N and --seeds=M of a command line.
inline Seeds TakeSeeds(int argc, char** argv, Seeds seeds) {
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    if (flag.rfind("--first=", 0) == 0) seeds.first = std::strtoull(argv[i] + 8, nullptr, 10);
    if (flag.rfind("--seeds=", 0) == 0) seeds.count = std::strtoull(argv[i] + 8, nullptr, 10);
  }
  return seeds;
}

inline std::string ReplayOf(uint64_t seed) { return "replay with --first=" + std::to_string(seed) + " --seeds=1"; }

}  // namespace fastdecode
