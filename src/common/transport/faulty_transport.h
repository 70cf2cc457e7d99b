// An Endpoint around another one that makes it behave as badly as a carrier may: for tests.
//
// What it does follows from a seed alone (and from how often its owner polls), so a failure
// replays. Time is counted in polls. It
//   delays    each message going out and coming in, lane by lane: never out of order within a
//             lane, so that lanes overtake each other
//   corrupts  one outgoing message where a receiver must notice: an unknown type
//   cuts      the link below, in the middle of whatever is under way; what the two endpoints
//             make of it is theirs
//
// Thread rule: the inner endpoint's.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <random>

#include "common/transport/transport.h"

namespace fastdecode {

struct FaultPlan {
  uint64_t seed = 0;
  int delay_percent = 0;      // of the messages, each way
  int max_delay_polls = 0;    // of one message
  int64_t corrupt_at = -1;    // the outgoing message with this number, from 0; -1: none
  int64_t cut_at_poll = -1;   // -1: never
  std::function<void()> cut;  // breaks the link below
};

class FaultyEndpoint final : public Endpoint {
 public:
  FaultyEndpoint(std::unique_ptr<Endpoint> inner, FaultPlan plan);

  Result<SendSlot> Acquire(Lane lane) override { return inner_->Acquire(lane); }
  Status Post(const SendSlot& slot) override;
  void Abandon(const SendSlot& slot) override { inner_->Abandon(slot); }
  Result<RecvSlot> Poll() override;
  void Release(const RecvSlot& slot) override { inner_->Release(slot); }
  int wait_fd() const override { return inner_->wait_fd(); }
  bool PrepareWait() override;
  const EndpointOptions& options() const override { return inner_->options(); }
  EndpointStats stats() const override { return inner_->stats(); }
  void HandOver() override { inner_->HandOver(); }

 private:
  template <typename Slot>
  struct Delayed {
    Slot slot;
    int64_t due = 0;  // poll
  };
  template <typename Slot>
  using Queue = std::array<std::deque<Delayed<Slot>>, kNumLanes>;

  int64_t Due();
  Status PostDue();
  Status TakeAll();
  bool Holds() const;

  const std::unique_ptr<Endpoint> inner_;
  const FaultPlan plan_;
  std::mt19937_64 random_;
  int64_t polls_ = 0;
  int64_t posts_ = 0;
  Queue<SendSlot> outgoing_;
  Queue<RecvSlot> incoming_;
  Status ended_;  // the inner endpoint's, told once what came before has been handed on
};

}  // namespace fastdecode
