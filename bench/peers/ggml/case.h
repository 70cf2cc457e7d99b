// What a peer's driver is asked for, read from the command line as all drivers read it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace fastdecode::peers {

// Sequences of one length, which one operation may take together.
struct Group {
  int64_t sequences = 0;
  int64_t context = 0;  // cached tokens of each
};

struct Case {
  int64_t heads = 32;
  int64_t kv_heads = 32;
  int64_t head_dim = 128;
  std::vector<Group> groups;  // by length, longest first
  int threads = 1;
  int64_t layers = 0;  // 0: as many as it takes to leave the caches
  int passes = 5;
  std::string kv_dtype = "f16";
  bool in_turns = false;  // wait for a line on standard input before each measured pass

  int64_t sequences() const;
  int64_t context_tokens() const;  // summed over the sequences
};

// Exits with a message and status 2 where the arguments are wrong, 0 after --help.
Case ParseCase(int argc, char** argv);

// Layers to cycle over: as asked for, else what touches 1 GiB and three times the largest
// cache, within 4 GiB. At least 1.
int64_t LayersOf(const Case& c, int64_t layer_bytes);

}  // namespace fastdecode::peers
