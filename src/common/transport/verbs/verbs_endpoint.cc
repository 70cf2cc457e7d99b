// Set-up and end; the data path is in verbs_endpoint_datapath.cc.
#include "common/transport/verbs/verbs_endpoint.h"

#include <fcntl.h>
#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <random>

#include "common/base/logging.h"
#include "common/transport/message_check.h"
#include "common/transport/verbs/verbs_errors.h"

namespace fastdecode {
namespace {

// Timers of the reliable protocol. 4.096 us * 2^14 * (6 + 1) is 0.5 s until a dead peer is
// known. 7 retries would mean for ever on some devices, and 7 of rnr_retry everywhere.
constexpr uint8_t kAckTimeout = 14;
constexpr uint8_t kRetries = 6;
constexpr uint8_t kReceiverRetries = 6;  // none should be needed: receives are always posted
constexpr uint8_t kReceiverTimer = 12;   // 0.64 ms
constexpr int kMinWindow = 64;           // of the peer's slots
constexpr int kSpareRequests = 2;        // of the send queue: for the goodbye
constexpr uint32_t kInlineSizes[] = {512, 256, 128, 64, 0};
constexpr uint8_t kHopLimit = 64;
constexpr uint64_t kMaxWrite = uint64_t{1} << 30;

std::string Errno(int error) { return std::strerror(error); }

int Writes(size_t bytes, size_t max_write) { return static_cast<int>((bytes + max_write - 1) / max_write); }

}  // namespace

VerbsEndpoint::VerbsEndpoint(const EndpointOptions& options, std::shared_ptr<const VerbsDevice> device,
                             std::shared_ptr<std::byte[]> memory, int spin_us, const Clock& clock)
    : options_(options),
      memory_(std::move(memory)),
      device_(std::move(device)),
      clock_(clock),
      spin_ns_(int64_t{spin_us} * 1000),
      spin_budget_ns_(spin_ns_) {}

Result<std::unique_ptr<VerbsEndpoint>> VerbsEndpoint::Create(const EndpointOptions& options,
                                                             std::shared_ptr<const VerbsDevice> device,
                                                             std::shared_ptr<std::byte[]> memory, int spin_us,
                                                             const Clock& clock) {
  CHECK(memory != nullptr);
  CHECK_EQ(reinterpret_cast<uintptr_t>(memory.get()) % 64, 0U) << "slot memory must be 64-byte aligned";
  std::unique_ptr<VerbsEndpoint> endpoint(
      new VerbsEndpoint(options, std::move(device), std::move(memory), spin_us, clock));
  FD_ASSIGN_OR_RETURN(endpoint->domain_, endpoint->device_->MakeDomain());
  std::byte* base = endpoint->memory_.get();
  for (Lane which : {Lane::kDecode, Lane::kBulk}) {
    const LaneOptions& lane = options.lanes[static_cast<size_t>(which)];
    CHECK(lane.slot_bytes >= sizeof(MessageHeader) && lane.slot_bytes % 64 == 0) << lane.slot_bytes;
    CHECK(lane.send_slots > 0 && lane.recv_slots > 0 && lane.recv_slots <= kMaxVerbsSlots);
    FD_RETURN_IF_ERROR(endpoint->SetUpLane(which, base));
    base += lane.slot_bytes * static_cast<size_t>(lane.send_slots + lane.recv_slots);
  }
  FD_RETURN_IF_ERROR(endpoint->CreateQueues());
  endpoint->FillHello();
  return endpoint;
}

// Books and registrations of a lane.
Status VerbsEndpoint::SetUpLane(Lane which, std::byte* base) {
  const LaneOptions& options = options_.lanes[static_cast<size_t>(which)];
  VerbsLane& lane = this->lane(which);
  lane.name = kLaneNames[static_cast<size_t>(which)];
  lane.lane = which;
  lane.slot_bytes = options.slot_bytes;
  lane.send_base = base;
  lane.recv_base = base + options.slot_bytes * static_cast<size_t>(options.send_slots);
  lane.max_write = std::min<uint64_t>(device_->port_attr().max_msg_sz, kMaxWrite);
  lane.window = std::clamp(2 * options.send_slots, kMinWindow, kMaxVerbsSlots);
  const int writes = Writes(options.slot_bytes, lane.max_write);
  lane.depth = options.send_slots * writes + options.recv_slots + kMinWindow;
  lane.signal_every = std::clamp(options.send_slots / 2, 1, VerbsLane::kMaxUnreported);
  lane.send_free.Reset(options.send_slots);
  lane.pending.Reset(options.send_slots);
  lane.credits.Reset(kMaxVerbsSlots);
  lane.ready.Reset(options.recv_slots);
  lane.owed.Reset(options.recv_slots);
  for (int i = 0; i < options.send_slots; ++i) lane.send_free.push(i);
  lane.send_state.assign(static_cast<size_t>(options.send_slots), VerbsLane::SendState::kFree);
  lane.recv_state.assign(static_cast<size_t>(options.recv_slots), VerbsLane::RecvState::kPeer);
  lane.arrived.resize(static_cast<size_t>(options.recv_slots));
  lane.peer_slot_used.assign(kMaxVerbsSlots, false);
  lane.slot_of_request.assign(static_cast<size_t>(lane.depth + kSpareRequests), -1);
  const size_t requests = static_cast<size_t>(std::max(writes, kPostBatch));
  if (requests_.size() < requests) requests_.resize(requests);
  pieces_.resize(requests_.size());
  receives_.resize(kPollBatch);
  return RegisterLane(lane);
}

Status VerbsEndpoint::RegisterLane(VerbsLane& lane) {
  const LaneOptions& options = options_.lanes[static_cast<size_t>(lane.lane)];
  const size_t send_bytes = options.slot_bytes * static_cast<size_t>(options.send_slots);
  const size_t recv_bytes = options.slot_bytes * static_cast<size_t>(options.recv_slots);
  lane.send_region.reset(ibv_reg_mr(domain_.get(), lane.send_base, send_bytes, 0));
  if (lane.send_region == nullptr) return RegistrationError(EndpointMemoryBytes(options_), errno);
  constexpr int kPeerWrites = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
  lane.recv_region.reset(ibv_reg_mr(domain_.get(), lane.recv_base, recv_bytes, kPeerWrites));
  if (lane.recv_region == nullptr) return RegistrationError(EndpointMemoryBytes(options_), errno);
  return OkStatus();
}

// A receive for each message and each credit that the peer can have on its way, and the goodbye.
int VerbsEndpoint::ReceivesOf(const VerbsLane& lane) const {
  return options_.lanes[static_cast<size_t>(lane.lane)].recv_slots + lane.window + 1;
}

Status VerbsEndpoint::CreateQueues() {
  int completions = 0;
  for (const VerbsLane& lane : lanes_) completions += lane.depth + kSpareRequests + ReceivesOf(lane);
  if (completions > device_->attr().max_cqe) {
    return {StatusCode::kResourceExhausted, "the slots of a session need a completion queue of " +
                                                std::to_string(completions) + " entries, the RDMA device " +
                                                device_->name() + " has " + std::to_string(device_->attr().max_cqe) +
                                                "; lower the number of slots"};
  }
  channel_.reset(ibv_create_comp_channel(device_->context()));
  if (channel_ == nullptr || fcntl(channel_->fd, F_SETFL, O_NONBLOCK) != 0) {
    return Unavailable("RDMA device " + device_->name() + ": no completion channel: " + Errno(errno));
  }
  queue_.reset(ibv_create_cq(device_->context(), completions, nullptr, channel_.get(), 0));
  if (queue_ == nullptr) {
    return Unavailable("RDMA device " + device_->name() + ": no completion queue: " + Errno(errno));
  }
  for (VerbsLane& lane : lanes_) FD_RETURN_IF_ERROR(CreatePair(lane));
  return OkStatus();
}

Status VerbsEndpoint::CreatePair(VerbsLane& lane) {
  ibv_qp_init_attr attr{};
  for (uint32_t inline_bytes : kInlineSizes) {
    attr = {};
    attr.send_cq = attr.recv_cq = queue_.get();
    attr.qp_type = IBV_QPT_RC;
    attr.cap.max_send_wr = static_cast<uint32_t>(lane.depth + kSpareRequests);
    attr.cap.max_recv_wr = static_cast<uint32_t>(ReceivesOf(lane));
    attr.cap.max_send_sge = attr.cap.max_recv_sge = 1;
    attr.cap.max_inline_data = inline_bytes;
    lane.pair.reset(ibv_create_qp(domain_.get(), &attr));
    if (lane.pair != nullptr) break;
  }
  if (lane.pair == nullptr) {
    return Unavailable("RDMA device " + device_->name() + ": no queue pair for " + std::to_string(lane.depth) +
                       " writes and " + std::to_string(ReceivesOf(lane)) + " receives (at most " +
                       std::to_string(device_->attr().max_qp_wr) + "): " + Errno(errno));
  }
  lane.max_inline = static_cast<int>(attr.cap.max_inline_data);
  lane.first_psn = std::random_device{}() & 0xffffffU;
  FD_RETURN_IF_ERROR(ToInit(lane));
  int left = ReceivesOf(lane);
  while (left > 0 && state_ == State::kUnconnected) {
    const int count = std::min(left, kPollBatch);
    PostReceives(lane, count);
    left -= count;
  }
  return failure_;
}

Status VerbsEndpoint::ToInit(const VerbsLane& lane) const {
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_INIT;
  attr.pkey_index = 0;
  attr.port_num = device_->port();
  attr.qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
  const int error =
      ibv_modify_qp(lane.pair.get(), &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
  if (error == 0) return OkStatus();
  return Unavailable("RDMA device " + device_->name() + ": a queue pair cannot be set up: " + Errno(error));
}

Status VerbsEndpoint::ToReceive(const VerbsLane& lane, const VerbsHello& peer, uint8_t service_level,
                                uint8_t traffic_class) const {
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_RTR;
  attr.path_mtu = static_cast<ibv_mtu>(std::min<int>(peer.mtu, hello_.mtu));
  attr.dest_qp_num = lane.peer.pair;
  attr.rq_psn = lane.peer.first_psn;
  attr.max_dest_rd_atomic = 1;
  attr.min_rnr_timer = kReceiverTimer;
  attr.ah_attr.dlid = peer.lid;
  attr.ah_attr.sl = service_level;
  attr.ah_attr.port_num = device_->port();
  attr.ah_attr.is_global = device_->is_ethernet() || (device_->port_attr().flags & IBV_QPF_GRH_REQUIRED) != 0 ? 1 : 0;
  std::memcpy(attr.ah_attr.grh.dgid.raw, peer.gid.data(), peer.gid.size());
  attr.ah_attr.grh.sgid_index = device_->gid_index();
  attr.ah_attr.grh.hop_limit = kHopLimit;
  attr.ah_attr.grh.traffic_class = traffic_class;
  const int error = ibv_modify_qp(lane.pair.get(), &attr,
                                  IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                                      IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
  if (error == 0) return OkStatus();
  return ConnectError(NameOf(lane), FormatGid(device_->gid()), FormatGid(attr.ah_attr.grh.dgid), error);
}

Status VerbsEndpoint::ToSend(const VerbsLane& lane) const {
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_RTS;
  attr.sq_psn = lane.first_psn;
  attr.timeout = kAckTimeout;
  attr.retry_cnt = kRetries;
  attr.rnr_retry = kReceiverRetries;
  attr.max_rd_atomic = 1;
  const int error = ibv_modify_qp(
      lane.pair.get(), &attr,
      IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
  if (error == 0) return OkStatus();
  return Unavailable(NameOf(lane) + ": the queue pair cannot send: " + Errno(error));
}

void VerbsEndpoint::FailPairs() const {
  for (const VerbsLane& lane : lanes_) {
    ibv_qp_attr attr{};
    attr.qp_state = IBV_QPS_ERR;
    CHECK_EQ(ibv_modify_qp(lane.pair.get(), &attr, IBV_QP_STATE), 0);
  }
}

void VerbsEndpoint::FillHello() {
  hello_.link_layer = device_->port_attr().link_layer;
  hello_.mtu = static_cast<uint8_t>(device_->port_attr().active_mtu);
  hello_.lid = device_->port_attr().lid;
  hello_.max_write = static_cast<uint32_t>(lanes_[0].max_write);
  std::memcpy(hello_.gid.data(), device_->gid().raw, hello_.gid.size());
  for (size_t i = 0; i < kNumLanes; ++i) {
    const VerbsLane& lane = lanes_[i];
    VerbsLaneHello& hello = hello_.lanes[i];
    hello.ring = reinterpret_cast<uintptr_t>(lane.recv_base);
    hello.slot_bytes = lane.slot_bytes;
    hello.key = lane.recv_region->rkey;
    hello.slots = static_cast<uint32_t>(options_.lanes[i].recv_slots);
    hello.window = static_cast<uint32_t>(lane.window);
    hello.pair = lane.pair->qp_num;
    hello.first_psn = lane.first_psn;
  }
}

Status VerbsEndpoint::Connect(const VerbsHello& peer, uint8_t service_level, uint8_t traffic_class) {
  CHECK(state_ == State::kUnconnected);
  if (peer.link_layer != hello_.link_layer) {
    return Unavailable(options_.peer +
                       ": one end is on InfiniBand, the other on Ethernet (RoCE); name devices of one "
                       "network by transport.verbs.device and the R-worker's --verbs_device");
  }
  for (size_t i = 0; i < kNumLanes; ++i) {
    VerbsLane& lane = lanes_[i];
    lane.peer = peer.lanes[i];
    lane.max_write = std::min<size_t>(lane.max_write, peer.max_write);
    if (Writes(lane.slot_bytes, lane.max_write) > static_cast<int>(requests_.size())) {
      return Unavailable(options_.peer + ": its RDMA device takes writes of at most " + std::to_string(peer.max_write) +
                         " bytes, too small for slots of " + std::to_string(lane.slot_bytes));
    }
    lane.window = std::min(lane.window, static_cast<int>(lane.peer.slots));
    lane.granted = std::min(options_.lanes[i].recv_slots, static_cast<int>(lane.peer.window));
    for (int slot = 0; slot < lane.window; ++slot) lane.credits.push(slot);
    FD_RETURN_IF_ERROR(ToReceive(lane, peer, service_level, traffic_class));
    FD_RETURN_IF_ERROR(ToSend(lane));
  }
  state_ = State::kConnected;
  return OkStatus();
}

bool VerbsEndpoint::AllSent() const {
  return std::all_of(lanes_.begin(), lanes_.end(), [](const VerbsLane& lane) { return lane.completed == lane.posted; });
}

Status VerbsEndpoint::CheckPath() {
  CHECK(state_ != State::kUnconnected);
  if (!path_checked_) {
    path_checked_ = true;
    for (VerbsLane& lane : lanes_) SendEmpty(lane, IBV_WR_RDMA_WRITE, 0, true);
  }
  (void)Reap();
  if (failure_.ok() && !AllSent() && Arm()) (void)Reap();
  if (!failure_.ok()) return failure_;
  return AllSent() ? OkStatus() : Status(StatusCode::kWouldBlock, {});
}

VerbsEndpoint::~VerbsEndpoint() {
  // Also after an error that is ours alone, such as a message that makes no sense: the peer may only receive.
  if (state_ != State::kUnconnected && !pairs_failed_) Drain();
  while (channel_ != nullptr && TakeEvent()) {
  }
}

void VerbsEndpoint::Drain() {
  (void)Reap();
  if (pairs_failed_ || (lanes_[0].peer_closed && lanes_[1].peer_closed)) return;  // nobody listens
  const int64_t deadline_ns = clock_.NowNs() + int64_t{kDrainMs} * 1'000'000;
  for (VerbsLane& lane : lanes_) {
    SendEmpty(lane, IBV_WR_RDMA_WRITE_WITH_IMM, Immediate{ImmediateKind::kBye}.Pack(), true);
  }
  while (true) {
    (void)Reap();
    if (pairs_failed_ || AllSent() || clock_.NowNs() >= deadline_ns || !Arm()) return;
    if (Reap() > 0) continue;
    pollfd fd{channel_->fd, POLLIN, 0};
    poll(&fd, 1, 10);
  }
}

}  // namespace fastdecode
