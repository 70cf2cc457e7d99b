// The transport's contract over RDMA: a reliable-connected queue pair a lane, messages
// written by the device from the send slot straight into the peer's receive slot (RDMA
// write with immediate; see verbs_wire.h), credits on the way back.
//
// Memory is handed in; send slots of a lane lie before its receive slots, the decode lane
// before bulk. Only receive slots can be written by the peer. When the endpoint goes, its
// queue pairs are destroyed and the keys are dead before the memory is given back: a late
// write of this life lands nowhere.
//
// A peer that dies while this end sends is noticed by the device within a second; one that
// dies while this end only receives is noticed by the control connection's heartbeats.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "common/base/clock.h"
#include "common/transport/transport.h"
#include "common/transport/verbs/verbs_device.h"
#include "common/transport/verbs/verbs_lane.h"
#include "common/transport/verbs/verbs_wire.h"

namespace fastdecode {

struct VerbsCounters {
  uint64_t doorbells = 0;        // calls that hand work requests to the device
  uint64_t credit_messages = 0;  // that carried nothing else
  uint64_t sleeps = 0;           // notifications asked for
};

class VerbsEndpoint final : public Endpoint {
 public:
  enum class State : uint8_t {
    kUnconnected,  // queue pairs can receive; the peer's hello is awaited
    kConnected,    // messages flow, or, at the S-worker's end before CheckPath is ok, would
    kBroken,       // failed; messages that came before are still handed out
    kDead,         // the failure was told
  };

  // memory: 64-byte aligned, EndpointMemoryBytes(options) long; kept until the end. spin_us:
  // how long PrepareWait at most says that polling is better than sleeping.
  static Result<std::unique_ptr<VerbsEndpoint>> Create(const EndpointOptions& options,
                                                       std::shared_ptr<const VerbsDevice> device,
                                                       std::shared_ptr<std::byte[]> memory, int spin_us = 0,
                                                       const Clock& clock = SteadyClock::Get());
  // Says goodbye, if the queue pairs still work, and lets what was sent arrive: at most kDrainMs.
  ~VerbsEndpoint() override;

  // What the peer must know.
  const VerbsHello& hello() const { return hello_; }
  // Both ends use this service level and traffic class.
  Status Connect(const VerbsHello& peer, uint8_t service_level, uint8_t traffic_class);
  // After Connect, before all else, if the peer is connected already: an empty write on each
  // lane. Ok once the peer's device has acknowledged both; kWouldBlock: call again when
  // wait_fd is readable; else why there is no way.
  Status CheckPath();

  Result<SendSlot> Acquire(Lane lane) override;
  Status Post(const SendSlot& slot) override;
  void Abandon(const SendSlot& slot) override;
  Result<RecvSlot> Poll() override;
  void Release(const RecvSlot& slot) override;
  int wait_fd() const override { return channel_->fd; }
  bool PrepareWait() override;
  const EndpointOptions& options() const override { return options_; }
  EndpointStats stats() const override { return stats_; }

  // Fails the queue pairs, as a fault of the network would. For tests; any thread.
  void FailPairs() const;

  State state() const { return state_; }
  const VerbsCounters& counters() const { return counters_; }

 private:
  static constexpr int kDrainMs = 300;
  static constexpr int kPollBatch = 16;  // completions taken at a time
  static constexpr int kPostBatch = 16;  // work requests a doorbell; a long message may need more

  VerbsEndpoint(const EndpointOptions& options, std::shared_ptr<const VerbsDevice> device,
                std::shared_ptr<std::byte[]> memory, int spin_us, const Clock& clock);
  Status CreateQueues();
  Status SetUpLane(Lane which, std::byte* base);
  Status RegisterLane(VerbsLane& lane);
  Status CreatePair(VerbsLane& lane);
  int ReceivesOf(const VerbsLane& lane) const;
  Status ToInit(const VerbsLane& lane) const;
  Status ToReceive(const VerbsLane& lane, const VerbsHello& peer, uint8_t service_level, uint8_t traffic_class) const;
  Status ToSend(const VerbsLane& lane) const;
  void FillHello();
  void Drain();
  bool AllSent() const;
  bool Arm();
  bool MaySpin();
  void Busy(int64_t now_ns);

  VerbsLane& lane(Lane which) { return lanes_[static_cast<size_t>(which)]; }
  std::string NameOf(const VerbsLane& lane) const { return options_.peer + ": " + lane.name + " stream"; }

  // Data path.
  void Push();  // whatever can be sent now
  void FlushPending(VerbsLane& lane);
  int AddMessage(VerbsLane& lane, int index, int count);
  void SendCredit(VerbsLane& lane);
  void Nudge(VerbsLane& lane);
  bool SendEmpty(VerbsLane& lane, ibv_wr_opcode opcode, uint32_t immediate, bool signaled);
  void Number(VerbsLane& lane, ibv_send_wr& request, int slot, bool signaled);
  void PostRequests(VerbsLane& lane, int count);
  int Reap();  // completions taken
  void OnCompletion(const ibv_wc& completion);
  void OnReceived(VerbsLane& lane, const ibv_wc& completion);
  void OnMessage(VerbsLane& lane, int slot, uint32_t last_write);
  void OnCredit(VerbsLane& lane, int slot);
  void OnSent(VerbsLane& lane, uint64_t number);
  void OnError(VerbsLane& lane, const ibv_wc& completion);
  void PostReceives(VerbsLane& lane, int count);
  void Break(Status status);
  bool TakeEvent();

  const EndpointOptions options_;
  const std::shared_ptr<std::byte[]> memory_;
  const std::shared_ptr<const VerbsDevice> device_;
  const Clock& clock_;
  ProtectionDomainPtr domain_;  // of this endpoint alone: no other peer's key reaches its slots
  CompletionChannelPtr channel_;
  CompletionQueuePtr queue_;
  std::array<VerbsLane, kNumLanes> lanes_;  // go before the queue
  VerbsHello hello_;
  State state_ = State::kUnconnected;
  bool pairs_failed_ = false;  // the queue pairs carry nothing any more
  const int64_t spin_ns_;
  int64_t spin_budget_ns_;
  int64_t idle_since_ns_ = 0;  // 0: since the latest message nobody waited
  bool path_checked_ = false;
  bool armed_ = false;               // a notification was asked for and has not been taken
  bool reaped_since_armed_ = false;  // without that there is none to take
  int first_lane_ = 0;               // that Poll looks at first
  std::vector<ibv_send_wr> requests_;
  std::vector<ibv_sge> pieces_;
  std::vector<ibv_recv_wr> receives_;
  std::array<ibv_wc, kPollBatch> completions_{};
  EndpointStats stats_;
  VerbsCounters counters_;
  Status failure_;
};

// Of a work request: which lane it is of, and whether it receives; the rest is its number.
inline constexpr uint64_t kVerbsReceive = uint64_t{1} << 63;
inline constexpr uint64_t kVerbsBulk = uint64_t{1} << 62;

}  // namespace fastdecode
