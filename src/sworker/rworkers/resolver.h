// Looks host names up on a thread of its own, since a name server may take seconds and
// the control thread has heartbeats to send.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "common/base/status.h"
#include "common/config/address.h"
#include "common/transport/tcp/socket_address.h"

namespace fastdecode {

class Resolver {
 public:
  using Answer = Result<std::vector<SocketAddress>>;

  // wake is called, on the resolver's thread, when an answer is there to take.
  explicit Resolver(std::function<void()> wake);
  ~Resolver();  // waits for a lookup in progress

  // One question an id at a time.
  void Ask(int id, const HostPort& host_port);
  std::optional<Answer> Take(int id);

 private:
  void Run();

  const std::function<void()> wake_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::pair<int, HostPort>> questions_;  // under mutex_
  std::map<int, Answer> answers_;                   // under mutex_
  bool stop_ = false;                               // under mutex_
  std::thread thread_;
};

}  // namespace fastdecode
