// Prefills a few prompts together, each without its last token, which its first decode
// pass takes like any newest token: S-part and causal attention on the device, layer by
// layer; each layer's K/V go to the R-workers as soon as they exist, while the next layer
// is computed, and are dropped. That is all it yields: of the last layer nothing else is
// computed.
//
// Held on the device at a time: the K/V of two layers at most. If the R-workers are
// slower than that, computing waits for them.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "sworker/engine/engine_context.h"

namespace fastdecode {

struct PrefillRequest {
  std::shared_ptr<const Request> request;
  int rworker = 0;
};

// Host memory of one batch; made once, since pinning is slow.
struct PrefillBuffers {
  PrefillBuffers(DeviceRuntime& device, int64_t max_tokens, int64_t max_prompts);
  HostBuffer ids, positions;  // [max_tokens]
  HostBuffer out_max;         // [max_prompts]
};

// Thread rule: the engine thread; tensors are touched by the stream's work alone.
class PrefillBatch {
 public:
  // Prompts of two tokens or more. `buffers` is this batch's until it is done.
  PrefillBatch(EngineContext& context, PrefillBuffers& buffers, std::vector<PrefillRequest> prompts);

  // Moves on whatever can: computing, pushing, finishing. Call after any event.
  void Advance();
  void ComputeDone();                                 // StageId::Owner::kPrefill
  void PushDone(int ring_index);                      // StageId::Owner::kPush
  std::optional<size_t> Pushed(SequenceId sequence);  // kPrefillDone: which prompt it is; none of this batch's
  void Lost(int rworker);

  struct Prompt {
    PrefillRequest from;
    int64_t begin = 0, length = 0;  // rows of the batch: the prompt's tokens but the last
    bool finish_sent = false, pushed = false, lost = false;
  };
  const std::vector<Prompt>& prompts() const { return prompts_; }

  bool overflowed(size_t prompt) const;  // once it is pushed
  bool done() const;                     // nothing is on the stream, and every prompt is pushed or lost

 private:
  // A run of one prompt's rows of one layer, at most a slot's worth.
  struct Piece {
    int layer = 0;
    size_t prompt = 0;
    int64_t begin = 0;  // row within the prompt
    int64_t rows = 0;
  };
  struct Push {
    Piece piece;
    HostRows slot;
    StageTimes times = {};
    bool busy = false;
  };
  static constexpr int kRing = 16;

  int layers() const { return context_.model.config().attention.num_layers; }
  bool computed() const { return next_layer_ == layers(); }
  bool all_lost() const;
  void Compute();
  void EnqueuePieces(int layer);
  void PushPieces();
  bool PushOne(const Piece& piece);
  void FinishPrompts();

  EngineContext& context_;
  std::vector<Prompt> prompts_;
  std::vector<int64_t> lengths_;
  int64_t total_ = 0;
  int next_layer_ = 0;  // to compute
  bool computing_ = false;
  StageTimes times_;
  std::deque<Piece> pieces_;
  std::array<Push, kRing> ring_;
  int pushes_ = 0;                        // busy entries of the ring
  at::Tensor ids_, positions_, out_max_;  // host, of this batch's size
  at::Tensor x_, device_positions_;       // the stream's
  at::Tensor row_max_;                    // [prompts] f32, the stream's
  std::array<at::Tensor, 2> kv_;          // by layer % 2: [rows, 2 * kv_width] f16
};

}  // namespace fastdecode
