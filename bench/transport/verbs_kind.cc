// The limit of verbs: the same writes with immediate by bare queue pairs, without headers,
// without credits (the device's acknowledgements alone bound what is on its way), with one
// completion queue for all peers. Small messages go inline; one write in half the slots is reported.
#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <span>

#include "bench/transport/kind.h"
#include "common/base/clock.h"
#include "common/transport/carrier.h"
#include "common/transport/verbs/verbs_endpoint.h"
#include "tests/support/raw_queue_pair.h"

namespace fastdecode::bench {
namespace {

constexpr int kInlineBytes = 512;
constexpr int kReceives = 64;  // posted, of a peer
constexpr int kRequests = 64;
constexpr size_t kWrites = 4;  // of a message longer than the device writes at once
constexpr int kPollBatch = 16;
constexpr uint64_t kReceive = uint64_t{1} << 32;  // of a work request's number; the rest is the peer

thread_local Calls calls_here;
decltype(ibv_context_ops::post_send) post_send = nullptr;
decltype(ibv_context_ops::post_recv) post_recv = nullptr;
decltype(ibv_context_ops::req_notify_cq) req_notify_cq = nullptr;

int CountSend(ibv_qp* pair, ibv_send_wr* request, ibv_send_wr** bad) {
  ++calls_here.post_send;
  for (const ibv_send_wr* one = request; one != nullptr; one = one->next) ++calls_here.writes;
  return post_send(pair, request, bad);
}
int CountReceive(ibv_qp* pair, ibv_recv_wr* request, ibv_recv_wr** bad) {
  ++calls_here.post_recv;
  return post_recv(pair, request, bad);
}
int CountNotify(ibv_cq* queue, int solicited) {
  ++calls_here.notify;
  return req_notify_cq(queue, solicited);
}

// The process's device, whose driver's calls are counted.
const Result<std::shared_ptr<const VerbsDevice>>& Device() {
  static const Result<std::shared_ptr<const VerbsDevice>> device = [] {
    Result<std::shared_ptr<const VerbsDevice>> opened = VerbsDevice::Open(VerbsOptions());
    if (opened.ok()) {
      ibv_context_ops& driver = (*opened)->context()->ops;
      post_send = std::exchange(driver.post_send, CountSend);
      post_recv = std::exchange(driver.post_recv, CountReceive);
      req_notify_cq = std::exchange(driver.req_notify_cq, CountNotify);
    }
    return opened;
  }();
  return device;
}

struct BareAddress {
  QueuePairAddress pair;
  uint64_t ring = 0;
  uint32_t key = 0;
};

class VerbsBare final : public Bare {
 public:
  VerbsBare(const Work& work, const Channel& channel)
      : work_(work),
        slots_(static_cast<size_t>(work.slots)),
        device_(*Device()),
        domain_(device_->MakeDomain().value()),
        ring_bytes_(slots_ * work.bytes),
        report_every_(static_cast<uint64_t>(std::clamp(work.slots / 2, 1, 16))),
        memory_(AllocatePageableSlots(2 * ring_bytes_ * static_cast<size_t>(work.peers))),
        peers_(static_cast<size_t>(work.peers)) {
    region_.reset(ibv_reg_mr(domain_.get(), memory_.get(), 2 * ring_bytes_ * peers_.size(),
                             IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE));
    events_.reset(ibv_create_comp_channel(device_->context()));
    CHECK(region_ != nullptr && events_ != nullptr);
    queue_.reset(ibv_create_cq(device_->context(), (kReceives + kRequests) * work.peers, nullptr, events_.get(), 0));
    CHECK(queue_ != nullptr);
    for (size_t i = 0; i < peers_.size(); ++i) ConnectPeer(i, channel);
    (void)channel.Take<char>();
  }

  std::vector<int64_t> RoundTrips(int count) override {
    std::vector<int64_t> times(static_cast<size_t>(count));
    for (int64_t& time : times) {
      const int64_t begin = NowNs();
      for (size_t i = 0; i < peers_.size(); ++i) Write(i, work_.bytes);
      for (size_t came = 0; came < peers_.size(); came += TakeOfEach()) Wait();
      time = NowNs() - begin;
    }
    return times;
  }

  void Echo(int count) override {
    for (int left = count * work_.peers; left > 0;) {
      bool progress = false;
      for (size_t i = 0; i < peers_.size(); ++i) {
        if (peers_[i].came == 0 || !HasRoom(peers_[i])) continue;
        --peers_[i].came;
        Write(i, work_.bytes);
        progress = true;
        --left;
      }
      if (!progress) Wait();
    }
  }

  int64_t Stream(int count) override {
    std::vector<int> left(peers_.size(), count);
    const int64_t begin = NowNs();
    for (size_t open = peers_.size(); open > 0; open -= TakeOfEach()) {
      bool progress = false;
      for (size_t i = 0; i < peers_.size(); ++i) {
        for (; left[i] > 0 && HasRoom(peers_[i]); --left[i], progress = true) Write(i, work_.bytes);
      }
      if (!progress) Wait();
    }
    return NowNs() - begin;
  }

  void Drain(int count) override {
    for (size_t open = peers_.size(); open > 0;) {
      for (size_t i = 0; i < peers_.size(); ++i) {
        if (peers_[i].came < count) continue;
        peers_[i].came -= count;
        Write(i, sizeof(MessageHeader));
        --open;
      }
      if (open > 0) Wait();
    }
  }

 private:
  struct Peer {
    QueuePairPtr pair;
    BareAddress address;
    int came = 0;             // messages that nobody took yet
    uint64_t written = 0;     // messages
    uint64_t reported = 0;    // of these, as done
    uint64_t unreported = 0;  // since the latest that will be reported
  };

  void ConnectPeer(size_t index, const Channel& channel) {
    Peer& peer = peers_[index];
    peer.pair = MakeRawQueuePair(*device_, domain_.get(), queue_.get(), kRequests, kInlineBytes);
    for (int i = 0; i < kReceives; ++i) PostReceive(index);
    channel.Put(BareAddress{AddressOf(*device_, *peer.pair),
                            reinterpret_cast<uintptr_t>(memory_.get()) + (2 * index + 1) * ring_bytes_, region_->rkey});
    peer.address = channel.Take<BareAddress>();
    ConnectRawQueuePair(*device_, peer.pair.get(), peer.address.pair);
    if (index + 1 == peers_.size()) channel.Put(char{0});  // this end can be written to
  }

  bool HasRoom(const Peer& peer) const { return peer.written - peer.reported < slots_; }

  // Takes a message of each peer that sent some; how many.
  size_t TakeOfEach() {
    size_t taken = 0;
    for (Peer& peer : peers_) {
      if (peer.came == 0) continue;
      --peer.came;
      ++taken;
    }
    return taken;
  }

  void Write(size_t index, size_t bytes) {
    Peer& peer = peers_[index];
    const uint64_t longest = device_->port_attr().max_msg_sz;
    const size_t slot = peer.written++ % slots_ * work_.bytes;
    const bool report = ++peer.unreported >= report_every_;
    if (report) peer.unreported = 0;
    std::array<ibv_send_wr, kWrites> requests{};
    std::array<ibv_sge, kWrites> pieces{};
    size_t count = 0;
    for (size_t at = 0; at < bytes; at += longest, ++count) {
      CHECK_LT(count, requests.size());
      const size_t size = std::min<size_t>(longest, bytes - at);
      pieces[count] = {reinterpret_cast<uintptr_t>(memory_.get()) + 2 * index * ring_bytes_ + slot + at,
                       static_cast<uint32_t>(size), region_->lkey};
      ibv_send_wr& request = requests[count];
      request.wr_id = index;
      request.sg_list = &pieces[count];
      request.num_sge = 1;
      request.opcode = IBV_WR_RDMA_WRITE;
      if (bytes <= kInlineBytes) request.send_flags |= IBV_SEND_INLINE;
      request.wr.rdma.remote_addr = peer.address.ring + slot + at;
      request.wr.rdma.rkey = peer.address.key;
      if (count > 0) requests[count - 1].next = &request;
    }
    requests[count - 1].opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
    if (report) requests[count - 1].send_flags |= IBV_SEND_SIGNALED;
    ibv_send_wr* bad = nullptr;
    CHECK_EQ(ibv_post_send(peer.pair.get(), requests.data(), &bad), 0);
  }

  void PostReceive(size_t index) {
    ibv_recv_wr request{};
    request.wr_id = kReceive | index;
    ibv_recv_wr* bad = nullptr;
    CHECK_EQ(ibv_post_recv(peers_[index].pair.get(), &request, &bad), 0);
  }

  // Completions taken.
  int Reap() {
    std::array<ibv_wc, kPollBatch> completions;
    const int count = ibv_poll_cq(queue_.get(), kPollBatch, completions.data());
    for (const ibv_wc& completion : std::span(completions).first(static_cast<size_t>(count))) {
      CHECK_EQ(completion.status, IBV_WC_SUCCESS) << ibv_wc_status_str(completion.status);
      const size_t index = completion.wr_id & ~kReceive;
      if ((completion.wr_id & kReceive) != 0) {
        ++peers_[index].came;
        PostReceive(index);
      } else {
        peers_[index].reported += report_every_;
      }
    }
    return count;
  }

  // Until something is done or comes, as the work says.
  void Wait() {
    if (Reap() > 0 || work_.waiting == Waiting::kSpin) return;
    if (!armed_) {
      armed_ = true;
      CHECK_EQ(ibv_req_notify_cq(queue_.get(), 0), 0);
      if (Reap() > 0) return;  // its notification may come later
    }
    pollfd fd{events_->fd, POLLIN, 0};
    poll(&fd, 1, -1);
    ibv_cq* queue = nullptr;
    void* context = nullptr;
    CHECK_EQ(ibv_get_cq_event(events_.get(), &queue, &context), 0);
    ibv_ack_cq_events(queue, 1);
    armed_ = false;
  }

  const Work work_;
  const size_t slots_;
  const std::shared_ptr<const VerbsDevice> device_;
  const ProtectionDomainPtr domain_;
  const size_t ring_bytes_;
  const uint64_t report_every_;
  const std::shared_ptr<std::byte[]> memory_;  // for each peer, what is sent, then what comes
  MemoryRegionPtr region_;
  CompletionChannelPtr events_;
  CompletionQueuePtr queue_;
  std::vector<Peer> peers_;  // go before the queue
  bool armed_ = false;       // a notification was asked for and not taken
};

class VerbsKind final : public Kind {
 public:
  std::string name() const override { return "verbs"; }
  bool in_place() const override { return false; }
  Status Available(bool) const override { return Device().status(); }

  std::unique_ptr<Endpoint> Connect(const EndpointOptions& options, Side, const Channel& channel) const override {
    const size_t bytes = EndpointMemoryBytes(options);
    auto endpoint = VerbsEndpoint::Create(options, *Device(), AllocatePageableSlots(bytes)).value();
    channel.Put(endpoint->hello());
    const auto hello = channel.Take<VerbsHello>();
    const Result<VerbsHello> peer = ParseVerbsHello(std::as_bytes(std::span(&hello, 1)), options);
    CHECK(peer.ok()) << peer.status().message();
    const Status status = endpoint->Connect(*peer, 0, 0);
    CHECK(status.ok()) << status.message();
    channel.Put(char{0});
    (void)channel.Take<char>();  // the other end can be written to
    return endpoint;
  }

  std::unique_ptr<Bare> ConnectBare(const Work& work, Side, const Channel& channel) const override {
    return std::make_unique<VerbsBare>(work, channel);
  }

  std::string round_trip_limit(Waiting waiting) const override {
    return waiting == Waiting::kSpin ? "bare queue pairs, a write with immediate each way, polled without end"
                                     : "bare queue pairs, a write with immediate each way, notified";
  }
  std::string bandwidth_limit() const override { return "bare queue pairs, writes with immediate"; }
  bool bare_has_peers() const override { return true; }
  Calls calls() const override { return calls_here; }
};

}  // namespace

std::unique_ptr<Kind> MakeVerbsKind() { return std::make_unique<VerbsKind>(); }

std::vector<std::unique_ptr<Kind>> AllKinds() {
  std::vector<std::unique_ptr<Kind>> kinds;
  kinds.push_back(MakeShmKind());
  kinds.push_back(MakeTcpKind());
  kinds.push_back(MakeVerbsKind());
  return kinds;
}

}  // namespace fastdecode::bench
