// What pages a piece of memory really got: asking for huge ones is only a wish.
//
// Thread rule: any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <istream>
#include <string>

namespace fastdecode::rworker {

struct PageUsage {
  // Huge pages that the kernel's NUMA balancing has marked for a look are missing here and
  // below; it leaves memory that is bound to a node alone.
  int64_t resident_bytes = 0;
  int64_t huge_bytes = 0;  // of them, in transparent or explicit huge pages
};

// Sums the mappings of `smaps` (the text of /proc/PID/smaps) over [begin, begin + bytes). Of
// one that reaches beyond, as much as may lie within.
PageUsage SumPageUsage(std::istream& smaps, uintptr_t begin, int64_t bytes);
// The same of this process. Takes as long as walking its page tables: once, not in a data path.
PageUsage ReadPageUsage(const std::byte* data, int64_t bytes);

// Why `bytes` of memory got few huge pages and what an administrator can do about it.
// `root` is where /sys lies (tests).
std::string HugePageHint(int64_t bytes, const std::string& root = "");

}  // namespace fastdecode::rworker
