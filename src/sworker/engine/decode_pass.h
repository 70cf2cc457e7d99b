// One pass of a mini-batch through all layers, as a state machine: a row is a sequence's
// newest token; the pass gives each the next one.
//
// For stage l of 0 … layers: O of layer l-1 comes in, the rest of that layer and the QKV
// of layer l are computed, the QKV rows go out. Stage `layers` has no QKV; one more
// stage samples. It stands by itself so that the other mini-batch's short stage 0 may
// run before it: else that one's first R-part would find nothing to hide behind.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "sworker/engine/engine_context.h"
#include "sworker/model/sampler.h"

namespace fastdecode {

// Thread rule: the engine thread; tensors are touched by the stream's work alone.
class DecodePass {
 public:
  enum class State {
    kIdle,       // no plan
    kBeginning,  // waits for the transport's credit to begin the pass or a layer
    kComputing,  // on the stream
    kAttending,  // rows are with the R-workers
    kDone,       // tokens() are there, until Reset
  };
  struct Row {
    SequenceId sequence = 0;
    int rworker = 0;
    int64_t position = 0;
    int32_t token = 0;
    uint64_t sampled = 0;
    std::shared_ptr<const Request> request;
  };

  DecodePass(EngineContext& context, int mini_batch, int max_rows);

  // rows ordered by R-worker, at least one; `step` is unique over all passes and never 0.
  void Start(uint64_t step, std::vector<Row> rows);
  // Goes on after a lack of credit. Cheap when there is nothing to do.
  void Advance();
  void StageDone();
  void Attended(const AttentionEvent& event);
  void Reset();

  State state() const { return state_; }
  const std::vector<Row>& rows() const { return rows_; }
  bool lost(size_t row) const { return lost_[row]; }  // its R-worker went during the pass
  int32_t token(size_t row) const;                    // kDone
  float logprob(size_t row) const;                    // kDone
  bool overflowed(size_t row) const;                  // kDone: a Q, K or V was beyond f16's range
  int64_t begin_ns() const { return begin_ns_; }
  // What the running stage had waited for; null: for a plan, or for the stage before.
  const AttendedInfo* unblocked() const { return stage_ == 0 || stage_ > layers() ? nullptr : &info_; }

 private:
  void LaunchLayer(std::span<const HostRows> qkv);
  void LaunchSampling();
  int layers() const { return context_.model.config().attention.num_layers; }
  void MarkLost(std::span<const HostRows> slices);

  EngineContext& context_;
  const int mini_batch_;
  State state_ = State::kIdle;
  uint64_t step_ = 0;
  int stage_ = 0;
  bool begun_ = false;
  int64_t begin_ns_ = 0;
  std::vector<Row> rows_;
  std::vector<StepRow> step_rows_;
  std::vector<RowSlice> slices_;
  std::vector<SamplingRow> sampling_;
  std::vector<bool> lost_;
  std::vector<HostRows> o_;  // of the layer before
  AttendedInfo info_;
  StageTimes times_;
  HostBuffer ids_, positions_, out_ids_, out_logprobs_, out_max_;
  at::Tensor x_, o_device_, device_positions_, row_max_;  // the stream's
};

}  // namespace fastdecode
