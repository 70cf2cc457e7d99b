// Memory on huge pages where the host has them free. On a page of 2 MiB a long copy needs
// no page walk every 4 KiB, and a device that writes there keeps fewer addresses.
//
// Any thread.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>

#include "common/base/status.h"

namespace fastdecode {

// Worth a try from this size on.
inline constexpr size_t kHugePage = size_t{2} << 20;

// Rounded up to whole pages, of huge ones for as much as one.
size_t WholePages(size_t bytes);

// Calls map(true) for memory on huge pages, if it is large enough for one, and map(false) if
// that fails, which the log says once. Mapping is what reserves the pages: later none can be
// missing.
Status MapOnHugePagesIfFree(size_t bytes, const std::function<Status(bool huge)>& map);

// Private memory, zeros, 4096-byte aligned at least; null if there is none. now: every page
// is there at once, else with its first use.
std::shared_ptr<std::byte[]> MapPrivateMemory(size_t bytes, bool now);

}  // namespace fastdecode
