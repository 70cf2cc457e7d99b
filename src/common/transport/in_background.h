// A Result that is made on a thread of its own: slots are memory that is touched, pinned and registered, which
// may take seconds a GiB, and the control thread has heartbeats to send.
#pragma once

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <chrono>
#include <functional>
#include <future>
#include <vector>

#include "common/base/fd.h"
#include "common/base/status.h"

namespace fastdecode {

// Thread rule: its owner's. `make` runs on another one; who destroys this first waits for it.
template <typename T>
class InBackground {
 public:
  explicit InBackground(std::function<Result<T>()> make)
      : made_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
        result_(std::async(std::launch::async, [this, make = std::move(make)] {
          Result<T> result = make();
          const uint64_t one = 1;
          [[maybe_unused]] const ssize_t count = write(made_.get(), &one, sizeof(one));
          return result;
        })) {}

  // kWouldBlock until it is made. Once.
  Result<T> Take() {
    if (result_.wait_for(std::chrono::seconds(0)) != std::future_status::ready) {
      return Status(StatusCode::kWouldBlock, {});
    }
    return result_.get();
  }
  void AppendWants(std::vector<pollfd>* fds) const { fds->push_back({made_.get(), POLLIN, 0}); }

 private:
  const Fd made_;
  std::future<Result<T>> result_;
};

}  // namespace fastdecode
