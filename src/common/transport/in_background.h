// A Result that is made on a thread of its own: slots are memory that is touched, pinned and registered, which
// may take seconds a GiB, and the control thread has heartbeats to send.
#pragma once

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <chrono>
#include <functional>
#include <future>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "common/base/fd.h"
#include "common/base/status.h"

namespace fastdecode {

// Thread rule: its owner's. `make` runs on another one; who destroys this first waits for it.
template <typename T>
class InBackground {
 public:
  // A host that gives no descriptor or no thread: Take has that error.
  explicit InBackground(std::function<Result<T>()> make) : made_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    if (!made_.valid()) {
      Fail("no descriptor (ulimit -n)");
      return;
    }
    try {
      result_ = std::async(std::launch::async, [this, make = std::move(make)] {
        Result<T> result = make();
        Ring();
        return result;
      });
    } catch (const std::system_error& error) {
      Fail(std::string("no thread (") + error.what() + "; ulimit -u, or the container's pids.max)");
    }
  }

  // kWouldBlock until it is made. Once.
  Result<T> Take() {
    if (!failure_.ok()) return failure_;
    if (result_.wait_for(std::chrono::seconds(0)) != std::future_status::ready) {
      return Status(StatusCode::kWouldBlock, {});
    }
    return result_.get();
  }
  // It is being made: who destroyed this now would wait.
  bool busy() const {
    return result_.valid() && result_.wait_for(std::chrono::seconds(0)) != std::future_status::ready;
  }
  void AppendWants(std::vector<pollfd>* fds) const { fds->push_back({made_.get(), POLLIN, 0}); }

 private:
  void Ring() {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t count = write(made_.get(), &one, sizeof(one));
  }
  void Fail(const std::string& what) {
    failure_ = Status(StatusCode::kResourceExhausted, what + " to make memory for message slots ready with");
    Ring();
  }

  const Fd made_;
  Status failure_;
  std::future<Result<T>> result_;
};

}  // namespace fastdecode
