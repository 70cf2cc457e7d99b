// The R-part on R-workers: one Endpoint each.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "common/base/model_shape.h"
#include "common/transport/transport.h"
#include "sworker/attention/backend.h"
#include "sworker/rworkers/session_options.h"

namespace fastdecode {

// Thread rule: the engine thread. Endpoints are handed over by Join and destroyed here.
// In the steady state nothing is allocated.
class RemoteAttention final : public AttentionBackend {
 public:
  // `session` is what the R-workers' endpoints were made with.
  RemoteAttention(const SessionOptions& session, int num_rworkers);

  // An R-worker's session begins (again). The old one, if any, must have been lost.
  void Join(int rworker, std::unique_ptr<Endpoint> endpoint);
  // The control connection says that it is gone. A kLost event follows if it was there.
  void Lose(int rworker, Status reason);
  // Another thread follows the engine thread (see Endpoint::HandOver).
  void HandOver();
  bool joined(int rworker) const { return peers_[static_cast<size_t>(rworker)].endpoint != nullptr; }

  Status BeginPass(int mini_batch, uint64_t step, std::span<const StepRow> rows,
                   std::span<const RowSlice> slices) override;
  void Idle(int mini_batch) override;
  Result<std::span<const HostRows>> AcquireQkv(int mini_batch) override;
  Status SubmitQkv(int mini_batch, int layer) override;
  void ReleaseO(int mini_batch) override;
  int max_push_rows() const override { return max_push_rows_; }
  Result<HostRows> AcquireKv(int rworker) override;
  Status SubmitKv(const HostRows& piece, SequenceId sequence, int layer, int position, int rows) override;
  Status FinishPrefill(int rworker, SequenceId sequence, int tokens) override;
  void Free(int rworker, SequenceId sequence) override;
  std::span<const int64_t> workload() const override { return workload_; }
  std::span<const int64_t> compute_ns() const override { return compute_ns_; }
  uint64_t wire_bytes() const override;
  std::optional<AttentionEvent> Poll() override;
  bool PrepareWait(std::vector<int>* fds) override;

 private:
  // A slot in the hands of the engine keeps its endpoint, and so its memory, alive even
  // if the R-worker is lost meanwhile.
  struct Slice {
    RowSlice range;
    std::shared_ptr<Endpoint> endpoint;
    SendSlot send = {};      // index -1: none
    RecvSlot received = {};  // index -1: none
    bool begun = false;      // kStepBegin is posted
    bool lost = false;
  };
  struct Pass {
    uint64_t step = 0;
    std::vector<Slice> slices;
    std::vector<HostRows> qkv;  // what AcquireQkv hands out
    std::vector<HostRows> o;    // what kAttended hands out
    int pending = 0;            // slices without O; 0: none is awaited
    int layer = -1;             // awaited
    AttendedInfo info;
  };
  struct Piece {
    std::shared_ptr<Endpoint> endpoint;
    SendSlot slot;
  };
  struct Question {
    MessageType answer{};
    SequenceId sequence = 0;
    bool operator==(const Question&) const = default;
  };
  struct Peer {
    std::shared_ptr<Endpoint> endpoint;  // null: lost, or not there yet
    std::deque<SequenceId> frees;        // waiting for a bulk slot
    std::deque<Question> asked;          // on the bulk lane, which answers in order
    int64_t last_arrival_ns = 0;
    std::vector<int64_t> pair_workload;  // a mini-batch
    uint64_t past_bytes = 0;             // of earlier sessions
  };

  Peer& peer(int rworker) { return peers_[static_cast<size_t>(rworker)]; }
  Pass& pass(int mini_batch) { return passes_[static_cast<size_t>(mini_batch)]; }
  static Status PostStepBegin(int mini_batch, uint64_t step, const Slice& slice, std::span<const StepRow> rows);
  Status PostControl(int rworker, MessageType type, MessageType answer, SequenceId sequence, int tokens);
  void Drop(int rworker, Status reason);  // marks slices, queues events
  void PollPeer(int rworker);
  Status Handle(int rworker, const RecvSlot& slot);
  Status HandleAnswer(int rworker, const RecvSlot& slot, AttentionEvent::Kind kind);
  Status HandleO(int rworker, const RecvSlot& slot);
  void SliceDone(int mini_batch);
  void SetWorkload(int rworker, int mini_batch, int64_t tokens);

  AttentionShape shape_;
  int max_push_rows_;
  std::vector<Peer> peers_;
  std::vector<Pass> passes_;
  std::vector<Piece> pieces_;  // acquired for a push, not yet submitted
  std::vector<int64_t> workload_;
  std::vector<int64_t> compute_ns_;
  std::deque<AttentionEvent> events_;
};

}  // namespace fastdecode
