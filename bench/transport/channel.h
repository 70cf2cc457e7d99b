// What the benchmark's two ends tell each other beside what is measured: how they meet, and
// what comes next. Two threads have a pair of sockets, two hosts a connection.
//
// Blocking. Whoever is left alone where it waits for an answer ends its program.
#pragma once

#include <string>
#include <type_traits>
#include <utility>

#include "common/base/fd.h"
#include "common/base/logging.h"
#include "common/config/address.h"

namespace fastdecode::bench {

class Channel {
 public:
  static std::pair<Channel, Channel> Pair();
  static Channel Listen(const HostPort& address);  // until the other end dials
  static Channel Dial(const HostPort& address);    // until the other end listens

  // Where the end that listens can be reached.
  const std::string& host() const { return host_; }

  template <typename T>
  void Put(const T& value) const {
    static_assert(std::is_trivially_copyable_v<T>);
    Send(&value, sizeof(value));
  }
  template <typename T>
  T Take() const {
    T value;
    CHECK(TryTake(&value)) << "the other end is gone";
    return value;
  }
  // False: the other end is done.
  template <typename T>
  bool TryTake(T* value) const {
    static_assert(std::is_trivially_copyable_v<T>);
    return Receive(value, sizeof(*value));
  }

 private:
  Channel(Fd socket, std::string host) : socket_(std::move(socket)), host_(std::move(host)) {}
  void Send(const void* bytes, size_t size) const;
  bool Receive(void* bytes, size_t size) const;

  Fd socket_;
  std::string host_;
};

}  // namespace fastdecode::bench
