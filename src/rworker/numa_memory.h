// Where memory lies on a machine with several NUMA nodes.
//
// The kernel's calls by number instead of libnuma: two calls are used, their ABI is fixed,
// libnuma's own view of the machine cannot be pointed at a made-up one for a test, and an
// R-worker host needs one library less.
//
// Thread rule: any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace fastdecode::rworker {

// From now on pages of [data, data + bytes), which begins at a page, come from `node`;
// with `strict` from no other even when it is full. 0 or an errno.
int BindMemory(std::byte* data, int64_t bytes, int node, bool strict);

// The node of the page under each of up to `samples` addresses spread evenly over the
// range; pages that are not there, or not to be asked about, are left out.
std::vector<int> SampleNodes(const std::byte* data, int64_t bytes, int samples);

}  // namespace fastdecode::rworker
