#include "sworker/engine/decode_pass.h"

#include <utility>

#include "common/base/logging.h"
#include "sworker/engine/rows_f16.h"

namespace fastdecode {

DecodePass::DecodePass(EngineContext& context, int mini_batch, int max_rows)
    : context_(context),
      mini_batch_(mini_batch),
      ids_(context.device, max_rows, at::kLong),
      positions_(context.device, max_rows, at::kLong),
      out_ids_(context.device, max_rows, at::kLong),
      out_logprobs_(context.device, max_rows, at::kFloat),
      out_max_(context.device, max_rows, at::kFloat) {}

void DecodePass::Start(uint64_t step, std::vector<Row> rows) {
  CHECK(state_ == State::kIdle && !rows.empty() && static_cast<int64_t>(rows.size()) <= ids_.tensor.size(0));
  step_ = step;
  stage_ = 0;
  begun_ = false;
  begin_ns_ = NowNs();
  rows_ = std::move(rows);
  step_rows_.clear();
  slices_.clear();
  sampling_.clear();
  o_.clear();
  lost_.assign(rows_.size(), false);
  int64_t* ids = ids_.tensor.mutable_data_ptr<int64_t>();
  int64_t* positions = positions_.tensor.mutable_data_ptr<int64_t>();
  for (size_t i = 0; i < rows_.size(); ++i) {
    const Row& row = rows_[i];
    ids[i] = row.token;
    positions[i] = row.position;
    step_rows_.push_back({.sequence = row.sequence, .position = static_cast<uint32_t>(row.position)});
    sampling_.push_back({.params = &row.request->sampling, .position = row.sampled});
    if (slices_.empty() || slices_.back().rworker != row.rworker)
      slices_.push_back({.rworker = row.rworker, .row_begin = static_cast<int>(i)});
    ++slices_.back().rows;
  }
  state_ = State::kBeginning;
  Advance();
}

void DecodePass::Advance() {
  if (state_ != State::kBeginning) return;
  if (stage_ == layers()) return LaunchLayer({});
  if (!begun_) {
    if (!context_.attention.BeginPass(mini_batch_, step_, step_rows_, slices_).ok()) return;
    begun_ = true;
  }
  Result<std::span<const HostRows>> qkv = context_.attention.AcquireQkv(mini_batch_);
  if (qkv.ok()) LaunchLayer(*qkv);
}

void DecodePass::LaunchLayer(std::span<const HostRows> qkv) {
  state_ = State::kComputing;
  const AttentionShape& shape = context_.model.config().attention;
  const int64_t rows = static_cast<int64_t>(rows_.size());
  std::function<void()> copy_in, copy_out;
  if (stage_ == 0) {
    copy_in = [this, rows] {
      const at::Device device = context_.device.device();
      device_positions_ = positions_.tensor.narrow(0, 0, rows).to(device, /*non_blocking=*/true);
      x_ = context_.model.Embed(ids_.tensor.narrow(0, 0, rows).to(device, /*non_blocking=*/true));
      row_max_ = at::Tensor();
    };
  } else {
    copy_in = [this, rows, width = shape.q_width()] {
      const auto options = at::TensorOptions().dtype(context_.model.compute_dtype()).device(context_.device.device());
      GatherRows(o_, rows, width, options, &o_device_);
    };
  }
  // Shared by compute and copy-out, which run one after the other.
  auto out = std::make_shared<at::Tensor>();
  auto work = [this, out, stage = stage_, more = stage_ < layers()] {
    if (stage > 0) x_ = context_.model.AttentionOut(stage - 1, x_, o_device_);
    if (more) *out = context_.model.AttentionIn(stage, x_, device_positions_);
  };
  if (stage_ < layers())
    copy_out = [this, out, qkv, width = shape.qkv_width()] { ScatterRows(*out, qkv, width, &row_max_); };
  LaunchStage(context_, {.owner = StageId::Owner::kPass, .index = mini_batch_}, &times_, std::move(copy_in),
              std::move(work), std::move(copy_out));
}

void DecodePass::LaunchSampling() {
  const int64_t rows = static_cast<int64_t>(rows_.size());
  auto work = [this, rows] {
    const Sampled sampled = Sample(context_.model.Logits(x_), sampling_);
    out_ids_.tensor.narrow(0, 0, rows).copy_(sampled.ids, /*non_blocking=*/true);
    out_logprobs_.tensor.narrow(0, 0, rows).copy_(sampled.logprobs, /*non_blocking=*/true);
    out_max_.tensor.narrow(0, 0, rows).copy_(row_max_, /*non_blocking=*/true);
  };
  LaunchStage(context_, {.owner = StageId::Owner::kPass, .index = mini_batch_}, &times_, {}, std::move(work), {});
}

void DecodePass::StageDone() {
  CHECK(state_ == State::kComputing);
  if (stage_ > layers()) {
    state_ = State::kDone;
    return;
  }
  if (stage_ > 0) context_.attention.ReleaseO(mini_batch_);
  if (stage_ == layers()) {
    ++stage_;
    return LaunchSampling();
  }
  state_ = State::kAttending;
  // Its failures arrive as events of the attention's.
  const Status status = context_.attention.SubmitQkv(mini_batch_, stage_);
  CHECK(status.ok()) << status.ToString();
}

void DecodePass::Attended(const AttentionEvent& event) {
  CHECK(state_ == State::kAttending);
  MarkLost(event.o);
  o_.assign(event.o.begin(), event.o.end());
  info_ = event.info;
  ++stage_;
  state_ = State::kBeginning;
  Advance();
}

void DecodePass::MarkLost(std::span<const HostRows> slices) {
  for (const HostRows& slice : slices) {
    if (!slice.lost) continue;
    for (int i = 0; i < slice.rows; ++i) lost_[static_cast<size_t>(slice.row_begin + i)] = true;
  }
}

void DecodePass::Reset() {
  CHECK(state_ == State::kDone);
  rows_.clear();
  state_ = State::kIdle;
}

int32_t DecodePass::token(size_t row) const {
  return static_cast<int32_t>(out_ids_.tensor.const_data_ptr<int64_t>()[row]);
}
float DecodePass::logprob(size_t row) const { return out_logprobs_.tensor.const_data_ptr<float>()[row]; }
bool DecodePass::overflowed(size_t row) const { return !(out_max_.tensor.const_data_ptr<float>()[row] <= kMaxF16); }

}  // namespace fastdecode
