// Drives a session as an engine would, with Q, K and V that follow from their indices, and
// checks every O against attention in double precision.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "common/base/model_shape.h"
#include "common/transport/transport.h"

namespace fastdecode {

class SessionClient {
 public:
  SessionClient(Endpoint* endpoint, const AttentionShape& shape) : endpoint_(*endpoint), shape_(shape) {}

  // K/V of `tokens` tokens, layer by layer, in pieces; waits for the acknowledgement.
  void Prefill(uint64_t sequence, uint32_t tokens);
  // One pass over all layers: each sequence's next token. Returns the worst |O - reference|.
  double Step(uint16_t mini_batch, const std::vector<uint64_t>& sequences);
  // The same in two halves, so that two mini-batches may be under way at once.
  void BeginStep(uint16_t mini_batch, const std::vector<uint64_t>& sequences);
  void SendLayer(uint16_t mini_batch, uint16_t layer);
  double ReceiveLayer(uint16_t mini_batch, uint16_t layer);
  void EndStep(uint16_t mini_batch);
  void Free(uint64_t sequence);

  // The next message, or the status that the endpoint died with.
  Result<RecvSlot> Receive();
  // Sends one message with this header as it is; the payload is zeros.
  void Send(Lane lane, MessageHeader header);

  uint32_t tokens(uint64_t sequence) const { return tokens_.at(sequence); }
  const MessageHeader& last_rows() const { return last_rows_; }  // header of the latest kORows
  void set_check(bool check) { check_ = check; }                 // off: the reference allocates

 private:
  struct Step_ {
    std::vector<uint64_t> sequences;
    uint64_t number = 0;
  };
  SendSlot Acquire(Lane lane);
  double CheckRow(const uint16_t* o, uint64_t sequence, uint16_t layer, uint32_t position) const;

  Endpoint& endpoint_;
  const AttentionShape shape_;
  std::map<uint64_t, uint32_t> tokens_;  // cached, by sequence
  std::map<uint16_t, Step_> steps_;      // by mini-batch
  MessageHeader last_rows_;
  bool check_ = true;
};

}  // namespace fastdecode
