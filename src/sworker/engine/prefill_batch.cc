#include "sworker/engine/prefill_batch.h"

#include <ATen/ops/abs.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/stack.h>

#include <algorithm>
#include <utility>

#include "common/base/logging.h"
#include "sworker/engine/rows_f16.h"

namespace fastdecode {
namespace {

int64_t Length(const PrefillRequest& prompt) { return static_cast<int64_t>(prompt.request->prompt.size()) - 1; }

int64_t TotalTokens(const std::vector<PrefillRequest>& prompts) {
  int64_t total = 0;
  for (const PrefillRequest& prompt : prompts) total += Length(prompt);
  return total;
}

}  // namespace

PrefillBuffers::PrefillBuffers(DeviceRuntime& device, int64_t max_tokens, int64_t max_prompts)
    : ids(device, max_tokens, at::kLong),
      positions(device, max_tokens, at::kLong),
      out_max(device, max_prompts, at::kFloat) {}

PrefillBatch::PrefillBatch(EngineContext& context, PrefillBuffers& buffers, std::vector<PrefillRequest> prompts)
    : context_(context), total_(TotalTokens(prompts)) {
  const int64_t count = static_cast<int64_t>(prompts.size());
  CHECK(total_ <= buffers.ids.tensor.size(0) && count <= buffers.out_max.tensor.size(0));
  ids_ = buffers.ids.tensor.narrow(0, 0, total_);
  positions_ = buffers.positions.tensor.narrow(0, 0, total_);
  out_max_ = buffers.out_max.tensor.narrow(0, 0, count);
  int64_t row = 0;
  int64_t* ids = ids_.mutable_data_ptr<int64_t>();
  int64_t* positions = positions_.mutable_data_ptr<int64_t>();
  for (PrefillRequest& prompt : prompts) {
    const std::vector<int32_t>& tokens = prompt.request->prompt;
    const int64_t length = Length(prompt);
    for (int64_t i = 0; i < length; ++i) {
      ids[row + i] = tokens[static_cast<size_t>(i)];
      positions[row + i] = i;
    }
    CHECK_GT(length, 0);
    lengths_.push_back(length);
    prompts_.push_back({.from = std::move(prompt), .begin = row, .length = length});
    row += length;
  }
}

void PrefillBatch::Advance() {
  PushPieces();
  if (all_lost()) return;  // nobody waits for the rest
  if (!computing_ && !computed()) {
    // kv_ of this layer replaces that of two layers before, whose pieces must be gone.
    const bool room =
        std::none_of(pieces_.begin(), pieces_.end(), [&](const Piece& p) { return p.layer <= next_layer_ - 2; });
    if (room) Compute();
  }
  FinishPrompts();
}

void PrefillBatch::Compute() {
  computing_ = true;
  const int layer = next_layer_;
  const bool last = layer + 1 == layers();
  std::function<void()> copy_in;
  if (layer == 0) {
    copy_in = [this] {
      const at::Device device = context_.device.device();
      device_positions_ = positions_.to(device, /*non_blocking=*/true);
      x_ = context_.model.Embed(ids_.to(device, /*non_blocking=*/true));
    };
  }
  auto qkv = std::make_shared<at::Tensor>();
  auto work = [this, qkv, layer, last] {
    const Model& model = context_.model;
    *qkv = model.AttentionIn(layer, x_, device_positions_);
    if (!last) x_ = model.AttentionOut(layer, x_, model.PrefillAttention(*qkv, lengths_));
  };
  auto copy_out = [this, qkv, layer, last] {
    const AttentionShape& shape = context_.model.config().attention;
    const at::Tensor kv = qkv->narrow(1, shape.q_width(), 2 * shape.kv_width());
    kv_[static_cast<size_t>(layer % 2)] = SaturatedF16(kv);
    std::vector<at::Tensor> largest;  // a prompt each
    for (const Prompt& prompt : prompts_)
      largest.push_back(at::amax(at::abs(kv.narrow(0, prompt.begin, prompt.length))).to(at::kFloat));
    const at::Tensor now = at::stack(largest);
    row_max_ = row_max_.defined() ? at::maximum(row_max_, now) : now;
    if (last) out_max_.copy_(row_max_, /*non_blocking=*/true);
  };
  LaunchStage(context_, {.owner = StageId::Owner::kPrefill}, &times_, std::move(copy_in), std::move(work),
              std::move(copy_out));
}

void PrefillBatch::ComputeDone() {
  computing_ = false;
  EnqueuePieces(next_layer_);
  ++next_layer_;
}

void PrefillBatch::EnqueuePieces(int layer) {
  const int64_t most = context_.attention.max_push_rows();
  for (size_t i = 0; i < prompts_.size(); ++i) {
    if (prompts_[i].lost) continue;
    for (int64_t begin = 0; begin < prompts_[i].length; begin += most) {
      pieces_.push_back(
          {.layer = layer, .prompt = i, .begin = begin, .rows = std::min(most, prompts_[i].length - begin)});
    }
  }
}

void PrefillBatch::PushPieces() {
  while (!pieces_.empty() && pushes_ < kRing) {
    if (!PushOne(pieces_.front())) return;
    pieces_.pop_front();
  }
}

bool PrefillBatch::PushOne(const Piece& piece) {
  Prompt& prompt = prompts_[piece.prompt];
  if (prompt.lost) return true;
  Result<HostRows> slot = context_.attention.AcquireKv(prompt.from.rworker);
  if (!slot.ok()) return false;
  if (slot->lost) {  // Perhaps since before this batch began.
    prompt.lost = true;
    return true;
  }
  const auto free = std::find_if(ring_.begin(), ring_.end(), [](const Push& p) { return !p.busy; });
  CHECK(free != ring_.end());
  *free = {.piece = piece, .slot = *slot, .busy = true};
  ++pushes_;
  const int64_t width = 2 * context_.model.config().attention.kv_width();
  auto copy = [this, data = slot->data, piece, row = prompt.begin + piece.begin, width] {
    HostRowsTensor(data, piece.rows, width)
        .copy_(kv_[static_cast<size_t>(piece.layer % 2)].narrow(0, row, piece.rows), /*non_blocking=*/true);
  };
  const int index = static_cast<int>(free - ring_.begin());
  LaunchStage(context_, {.owner = StageId::Owner::kPush, .index = index}, &free->times, std::move(copy), {}, {});
  return true;
}

void PrefillBatch::PushDone(int ring_index) {
  Push& push = ring_[static_cast<size_t>(ring_index)];
  const Prompt& prompt = prompts_[push.piece.prompt];
  const Status status =
      context_.attention.SubmitKv(push.slot, prompt.from.request->id, push.piece.layer,
                                  static_cast<int>(push.piece.begin), static_cast<int>(push.piece.rows));
  CHECK(status.ok()) << status.ToString();
  push.busy = false;
  --pushes_;
}

void PrefillBatch::FinishPrompts() {
  if (!computed() || !pieces_.empty() || pushes_ > 0) return;
  for (Prompt& prompt : prompts_) {
    if (prompt.finish_sent || prompt.lost) continue;
    if (!context_.attention.FinishPrefill(prompt.from.rworker, prompt.from.request->id, static_cast<int>(prompt.length))
             .ok())
      return;
    prompt.finish_sent = true;
  }
}

std::optional<size_t> PrefillBatch::Pushed(SequenceId sequence) {
  for (size_t i = 0; i < prompts_.size(); ++i) {
    if (prompts_[i].from.request->id != sequence) continue;
    prompts_[i].pushed = true;
    return i;
  }
  return std::nullopt;
}

void PrefillBatch::Lost(int rworker) {
  for (Prompt& prompt : prompts_) {
    if (prompt.from.rworker == rworker && !prompt.pushed) prompt.lost = true;
  }
}

bool PrefillBatch::all_lost() const {
  return std::all_of(prompts_.begin(), prompts_.end(), [](const Prompt& p) { return p.lost; });
}

bool PrefillBatch::done() const {
  if (computing_ || pushes_ > 0) return false;
  return all_lost() ||
         (computed() && pieces_.empty() &&
          std::all_of(prompts_.begin(), prompts_.end(), [](const Prompt& p) { return p.pushed || p.lost; }));
}

bool PrefillBatch::overflowed(size_t prompt) const { return !(out_max_.const_data_ptr<float>()[prompt] <= kMaxF16); }

}  // namespace fastdecode
