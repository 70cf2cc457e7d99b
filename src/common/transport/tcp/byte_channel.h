// A nonblocking socket with two small fixed buffers: handshakes and control frames. It
// reads no byte beyond what its user asks for, since a stream's next bytes may belong to
// somebody else (the data path), and holds no more than its buffers, whatever comes.
//
// Thread rule: one owner thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstring>
#include <string>

#include "common/base/fd.h"
#include "common/base/status.h"
#include "common/wire/control.h"

namespace fastdecode {

class ByteChannel {
 public:
  ByteChannel() = default;
  ByteChannel(Fd socket, std::string peer) : socket_(std::move(socket)), peer_(std::move(peer)) {}

  int fd() const { return socket_.get(); }
  bool open() const { return socket_.valid(); }
  const std::string& peer() const { return peer_; }
  Fd TakeSocket() { return std::move(socket_); }
  void Close() { socket_.Reset(); }

  // A whole T, kWouldBlock, or the stream's error.
  template <typename T>
  Status Read(T& value) {
    static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= kInCapacity);
    FD_RETURN_IF_ERROR(Fill(sizeof(T)));
    std::memcpy(static_cast<void*>(&value), in_.data(), sizeof(T));
    in_size_ = 0;
    return OkStatus();
  }
  // Received of the value that Read waits for: a peer that stops in between is told apart.
  size_t partial_bytes() const { return in_size_; }

  // Queues and sends what can be sent. kResourceExhausted: the peer doesn't read.
  template <typename T>
  Status Write(const T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    FD_RETURN_IF_ERROR(Queue(&value, sizeof(T)));
    return Flush();
  }
  Status Flush();
  bool wants_write() const { return out_size_ > 0; }

  // A frame of the control connection.
  struct Frame {
    FrameType type{};
    std::array<std::byte, kMaxFramePayload> payload;
    template <typename T>
    T as() const {
      T value;
      std::memcpy(static_cast<void*>(&value), payload.data(), sizeof(T));
      return value;
    }
  };
  Status ReadFrame(Frame& frame);
  // An owner with other work reads so many before it looks after that: a peer may send frames without end.
  static constexpr int kFramesATurn = 16;
  template <typename T>
  Status WriteFrame(const T& payload) {
    FrameHeader header;
    header.type = static_cast<uint16_t>(T::kType);
    header.payload_bytes = sizeof(T);
    FD_RETURN_IF_ERROR(Queue(&header, sizeof(header)));
    return Write(payload);  // both in one segment
  }

 private:
  static constexpr size_t kInCapacity = sizeof(FrameHeader) + kMaxFramePayload;
  static constexpr size_t kOutCapacity = 8 * kInCapacity;

  Status Fill(size_t bytes);
  Status Queue(const void* data, size_t bytes);

  Fd socket_;
  std::string peer_;
  std::array<std::byte, kInCapacity> in_;
  size_t in_size_ = 0;
  std::array<std::byte, kOutCapacity> out_;
  size_t out_size_ = 0;
};

}  // namespace fastdecode
