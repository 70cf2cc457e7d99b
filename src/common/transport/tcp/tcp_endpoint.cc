// Set-up; the data path is in tcp_endpoint_datapath.cc.
#include "common/transport/tcp/tcp_endpoint.h"

#include <sys/epoll.h>

#include <cerrno>

#include "common/base/logging.h"
#include "common/transport/message_check.h"
#include "common/transport/tcp/socket.h"

namespace fastdecode {
TcpEndpoint::TcpEndpoint(const EndpointOptions& options, std::shared_ptr<std::byte[]> memory, const Clock& clock)
    : options_(options), memory_(std::move(memory)), clock_(clock), epoll_(epoll_create1(EPOLL_CLOEXEC)) {}

Result<std::unique_ptr<TcpEndpoint>> TcpEndpoint::Create(const EndpointOptions& options,
                                                         std::array<Fd, kNumLanes> sockets,
                                                         std::shared_ptr<std::byte[]> memory, const Clock& clock) {
  CHECK(memory != nullptr);
  CHECK_EQ(reinterpret_cast<uintptr_t>(memory.get()) % 64, 0U) << "slot memory must be 64-byte aligned";
  std::unique_ptr<TcpEndpoint> endpoint(new TcpEndpoint(options, std::move(memory), clock));
  if (!endpoint->epoll_.valid()) return Unavailable("cannot make an epoll descriptor: " + DescribeErrno(errno));
  std::byte* base = endpoint->memory_.get();
  for (int i = 0; i < kNumLanes; ++i) {
    const LaneOptions& lane = options.lanes[static_cast<size_t>(i)];
    CHECK(lane.slot_bytes >= sizeof(MessageHeader) && lane.slot_bytes % 64 == 0) << lane.slot_bytes;
    CHECK(lane.send_slots > 0 && lane.recv_slots > 0);
    FD_RETURN_IF_ERROR(endpoint->SetUpLane(i, std::move(sockets[static_cast<size_t>(i)]), base));
    base += lane.slot_bytes * static_cast<size_t>(lane.send_slots + lane.recv_slots);
  }
  return endpoint;
}

Status TcpEndpoint::SetUpLane(int index, Fd socket, std::byte* base) {
  const LaneOptions& options = options_.lanes[static_cast<size_t>(index)];
  LaneState& lane = lanes_[static_cast<size_t>(index)];
  lane.name = kLaneNames[static_cast<size_t>(index)];
  lane.socket = std::move(socket);
  lane.slot_bytes = options.slot_bytes;
  lane.send_base = base;
  lane.recv_base = base + options.slot_bytes * static_cast<size_t>(options.send_slots);
  lane.send_pending.Reset(options.send_slots);
  lane.send_free.reserve(static_cast<size_t>(options.send_slots));
  lane.recv_free.reserve(static_cast<size_t>(options.recv_slots));
  for (int i = options.send_slots - 1; i >= 0; --i) lane.send_free.push_back(i);
  for (int i = options.recv_slots - 1; i >= 0; --i) lane.recv_free.push_back(i);
  lane.send_state.assign(static_cast<size_t>(options.send_slots), SlotState::kFree);
  lane.recv_state.assign(static_cast<size_t>(options.recv_slots), SlotState::kFree);
  lane.interest = EPOLLIN;
  epoll_event event{};
  event.events = lane.interest;
  event.data.u32 = static_cast<uint32_t>(index);
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, lane.socket.get(), &event) != 0) {
    return Unavailable("cannot watch the " + std::string(lane.name) + " stream: " + DescribeErrno(errno));
  }
  return OkStatus();
}

Status TcpEndpoint::StreamError(const LaneState& lane, int error) const {
  StatusCode code = error == ETIMEDOUT ? StatusCode::kDeadlineExceeded : StatusCode::kUnavailable;
  return {code, options_.peer + ": " + lane.name + " stream: " + DescribeErrno(error)};
}

Status TcpEndpoint::StreamEnd(const LaneState& lane) const {
  if (lane.received == 0) return Unavailable(options_.peer + " closed the " + lane.name + " stream");
  std::string total = "at least " + std::to_string(sizeof(MessageHeader));
  if (lane.received >= sizeof(MessageHeader)) {
    const auto* header =
        reinterpret_cast<const MessageHeader*>(lane.recv_base + lane.slot_bytes * static_cast<size_t>(lane.recv_slot));
    total = std::to_string(sizeof(MessageHeader) + header->payload_bytes);
  }
  return DataLoss(options_.peer + " closed the " + lane.name + " stream in the middle of a message: " +
                  std::to_string(lane.received) + " of " + total + " bytes came");
}

}  // namespace fastdecode
