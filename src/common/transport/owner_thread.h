// Asserts, in debug builds, that an endpoint is used by one thread alone: the first that used it, or that used
// it since it was released.
#pragma once

#include <thread>

#include "common/base/logging.h"

namespace fastdecode {

class OwnerThread {
 public:
  void Check() {
#ifndef NDEBUG
    if (id_ == std::thread::id()) id_ = std::this_thread::get_id();
    CHECK(id_ == std::this_thread::get_id()) << "an endpoint belongs to one thread";
#endif
  }
  void Release() { id_ = {}; }

 private:
  std::thread::id id_;
};

}  // namespace fastdecode
