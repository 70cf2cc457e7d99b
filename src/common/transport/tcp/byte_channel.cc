#include "common/transport/tcp/byte_channel.h"

#include <sys/socket.h>

#include <cerrno>

#include "common/transport/tcp/socket.h"

namespace fastdecode {

Status ByteChannel::Fill(size_t bytes) {
  while (in_size_ < bytes) {
    ssize_t count = recv(socket_.get(), in_.data() + in_size_, bytes - in_size_, MSG_DONTWAIT);
    if (count > 0) {
      in_size_ += static_cast<size_t>(count);
    } else if (count == 0) {
      if (in_size_ == 0) return Unavailable(peer_ + " closed the connection");
      return DataLoss(peer_ + " closed the connection in the middle of a message: " + std::to_string(in_size_) +
                      " of " + std::to_string(bytes) + " bytes came");
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      return {StatusCode::kWouldBlock, {}};
    } else if (errno != EINTR) {
      StatusCode code = errno == ETIMEDOUT ? StatusCode::kDeadlineExceeded : StatusCode::kUnavailable;
      return {code, peer_ + ": " + DescribeErrno(errno)};
    }
  }
  return OkStatus();
}

Status ByteChannel::ReadFrame(Frame& frame) {
  FD_RETURN_IF_ERROR(Fill(sizeof(FrameHeader)));
  FrameHeader header;
  std::memcpy(&header, in_.data(), sizeof(header));
  if (header.magic != kFrameMagic || header.version != kProtocolVersion) {
    return DataLoss(peer_ + " sends bytes that are no control frame");
  }
  size_t expected = FramePayloadBytes(header.type);
  if (expected == 0)
    return DataLoss(peer_ + " sends a control frame of the unknown type " + std::to_string(header.type));
  if (header.payload_bytes != expected) {
    return DataLoss(peer_ + " sends a control frame of type " + std::to_string(header.type) + " with " +
                    std::to_string(header.payload_bytes) + " bytes, expected " + std::to_string(expected));
  }
  FD_RETURN_IF_ERROR(Fill(sizeof(header) + expected));
  frame.type = static_cast<FrameType>(header.type);
  std::memcpy(frame.payload.data(), in_.data() + sizeof(header), expected);
  in_size_ = 0;
  return OkStatus();
}

Status ByteChannel::Queue(const void* data, size_t bytes) {
  if (bytes > out_.size() - out_size_) {
    return {StatusCode::kResourceExhausted, peer_ + " does not read its control connection"};
  }
  std::memcpy(out_.data() + out_size_, data, bytes);
  out_size_ += bytes;
  return OkStatus();
}

Status ByteChannel::Flush() {
  while (out_size_ > 0) {
    ssize_t count = send(socket_.get(), out_.data(), out_size_, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (count < 0) {
      if (errno == EINTR) continue;
      if (errno == EAGAIN || errno == EWOULDBLOCK) return OkStatus();
      return Unavailable(peer_ + ": " + DescribeErrno(errno));
    }
    out_size_ -= static_cast<size_t>(count);
    std::memmove(out_.data(), out_.data() + count, out_size_);
  }
  return OkStatus();
}

}  // namespace fastdecode
