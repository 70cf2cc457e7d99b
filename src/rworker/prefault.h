// Touches every page of a large piece of memory before it is needed, so that no page
// fault waits in a data path.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "common/base/status.h"

namespace fastdecode::rworker {

struct PrefaultPart {
  std::byte* data = nullptr;
  int64_t bytes = 0;
  std::vector<int> cpus;  // whose threads touch it; empty: any
};

struct PrefaultOptions {
  int threads = 1;
  int64_t page_bytes = 0;      // of its pages at most: no two threads share one
  std::function<bool()> stop;  // asked every few milliseconds; true ends it. May be empty
  int log_interval_ms = 2000;  // from one line about the progress to the next
};

// Zeroes what it touches where the kernel cannot populate. kCancelled when `stop` said so,
// kResourceExhausted when the system has no page left for it.
Status Prefault(std::span<const PrefaultPart> parts, const PrefaultOptions& options);

}  // namespace fastdecode::rworker
