#include "tests/contract/transport/raw_verbs_end.h"

#include <arpa/inet.h>

#include <algorithm>
#include <cstring>

#include "common/base/logging.h"
#include "tests/support/raw_queue_pair.h"

namespace fastdecode {
namespace {

constexpr uint32_t kRequests = 64;
constexpr size_t kMemoryBytes = 1 << 17;

}  // namespace

RawVerbsEnd::RawVerbsEnd(const VerbsHello& peer)
    : device_(VerbsDevice::Open(VerbsOptions()).value()),
      peer_(peer),
      domain_(device_->MakeDomain().value()),
      memory_(kMemoryBytes) {
  region_.reset(
      ibv_reg_mr(domain_.get(), memory_.data(), memory_.size(), IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE));
  CHECK(region_ != nullptr);
  queue_.reset(ibv_create_cq(device_->context(), 4 * static_cast<int>(kRequests), nullptr, nullptr, 0));
  CHECK(queue_ != nullptr);
  hello_.link_layer = device_->port_attr().link_layer;
  hello_.mtu = static_cast<uint8_t>(device_->port_attr().active_mtu);
  hello_.max_write = peer.max_write;
  std::memcpy(hello_.gid.data(), device_->gid().raw, hello_.gid.size());
  for (size_t lane = 0; lane < kNumLanes; ++lane) {
    CreatePair(lane, peer);
    hello_.lanes[lane] = peer.lanes[lane];
    hello_.lanes[lane].ring = reinterpret_cast<uintptr_t>(memory_.data());
    hello_.lanes[lane].key = region_->rkey;
    hello_.lanes[lane].slots = 1;
    hello_.lanes[lane].pair = pairs_[lane]->qp_num;
    hello_.lanes[lane].first_psn = kRawFirstPsn;
  }
}

void RawVerbsEnd::CreatePair(size_t lane, const VerbsHello& peer) {
  pairs_[lane] = MakeRawQueuePair(*device_, domain_.get(), queue_.get(), kRequests, 0);
  for (uint32_t i = 0; i < kRequests; ++i) {
    ibv_recv_wr receive{};
    ibv_recv_wr* bad = nullptr;
    CHECK_EQ(ibv_post_recv(pairs_[lane].get(), &receive, &bad), 0);
  }
  ConnectRawQueuePair(*device_, pairs_[lane].get(),
                      {peer.gid, peer.lid, peer.lanes[lane].pair, peer.lanes[lane].first_psn});
}

void RawVerbsEnd::Vanish() {
  for (QueuePairPtr& pair : pairs_) pair.reset();
}

RawVerbsEnd::~RawVerbsEnd() {
  if (pairs_[0] == nullptr) return;
  for (Lane lane : {Lane::kDecode, Lane::kBulk}) (void)WriteAt(lane, 0, {}, Immediate{ImmediateKind::kBye}.Pack());
}

bool RawVerbsEnd::Write(Lane lane, std::span<const std::byte> bytes) {
  return WriteAt(lane, 0, bytes, Immediate{ImmediateKind::kMessage}.Pack());
}

bool RawVerbsEnd::WriteAt(Lane lane, uint64_t offset, std::span<const std::byte> bytes, uint32_t immediate) {
  const auto& to = peer_.lanes[static_cast<size_t>(lane)];
  return WriteTo(lane, to.ring + offset, to.key, bytes, immediate);
}

bool RawVerbsEnd::WriteTo(Lane lane, uint64_t address, uint32_t key, std::span<const std::byte> bytes,
                          uint32_t immediate) {
  CHECK_LE(bytes.size(), memory_.size());
  std::copy(bytes.begin(), bytes.end(), memory_.begin());
  const auto which = static_cast<size_t>(lane);
  ibv_sge piece{reinterpret_cast<uintptr_t>(memory_.data()), static_cast<uint32_t>(bytes.size()), region_->lkey};
  ibv_send_wr request{};
  request.sg_list = &piece;
  request.num_sge = bytes.empty() ? 0 : 1;
  request.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
  request.send_flags = IBV_SEND_SIGNALED;
  request.imm_data = htonl(immediate);
  request.wr.rdma.remote_addr = address;
  request.wr.rdma.rkey = key;
  ibv_send_wr* bad = nullptr;
  if (ibv_post_send(pairs_[which].get(), &request, &bad) != 0) return false;
  ibv_wc completion{};
  do {
    while (ibv_poll_cq(queue_.get(), 1, &completion) == 0) {
    }
  } while (completion.status == IBV_WC_SUCCESS && completion.opcode != IBV_WC_RDMA_WRITE);
  return completion.status == IBV_WC_SUCCESS;
}

}  // namespace fastdecode
