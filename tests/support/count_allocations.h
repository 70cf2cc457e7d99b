// Counts the calls of operator new on all threads, in a test program that links
// count_allocations.cc: the steady state of a data path must make none.
#pragma once

#include <cstdint>

namespace fastdecode {

uint64_t CountedAllocations();

}  // namespace fastdecode
