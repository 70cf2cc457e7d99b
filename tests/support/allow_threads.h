// From here on this process can start so many more threads and no other, as where a container's pids.max is near. For
// a process of its own (EXPECT_EXIT): there is no way back.
#pragma once

#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstddef>
#include <fstream>

namespace fastdecode {

inline void AllowThreads(size_t count) {
  constexpr size_t kStack = size_t{256} << 20;  // that address space is what runs out
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, kStack);
  pthread_setattr_default_np(&attributes);
  size_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  const rlim_t bytes = pages * static_cast<size_t>(sysconf(_SC_PAGESIZE)) + count * kStack + kStack / 2;
  const rlimit limit{bytes, bytes};
  if (setrlimit(RLIMIT_AS, &limit) != 0) _exit(3);
}

}  // namespace fastdecode
