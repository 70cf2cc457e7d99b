#include "tests/integration/e2e/remote_decoder.h"

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <utility>

#include "common/base/logging.h"
#include "sworker/engine/engine_context.h"
#include "sworker/engine/rows_f16.h"

namespace fastdecode::testing {
namespace {

SessionOptions Session(const AttentionShape& shape, int max_context, int max_rows) {
  SessionOptions session;
  session.shape = shape;
  session.max_context = max_context;
  session.max_sequences = max_rows;
  session.mini_batches = 1;
  session.max_rows = max_rows;
  return session;
}

template <typename T>
at::Tensor Ids(std::span<const T> values) {
  at::Tensor ids = at::empty({static_cast<int64_t>(values.size())}, at::kLong);
  for (size_t i = 0; i < values.size(); ++i) ids.mutable_data_ptr<int64_t>()[i] = values[i];
  return ids;
}

}  // namespace

RemoteDecoder::RemoteDecoder(const Model& model, DeviceRuntime& device, int max_context, int rworkers, int max_rows)
    : model_(model), shape_(model.config().attention), stream_(device.MakeStream()), rworkers_(rworkers) {
  const SessionOptions session = Session(shape_, max_context, max_rows);
  std::vector<std::string> addresses;
  for (int r = 0; r < rworkers; ++r) {
    processes_.push_back(std::make_unique<RWorkerProcess>(std::vector<std::string>{"--kv_memory=256MiB"}));
    addresses.push_back(processes_.back()->address());
  }
  attention_ = std::make_unique<RemoteAttention>(session, rworkers);
  pool_ = std::make_unique<PoolHarness>(addresses, session);
  for (int r = 0; r < rworkers; ++r) attention_->Join(r, std::move(pool_->WaitJoined(r).endpoint));
}

void RemoteDecoder::OnStream(const std::function<void()>& work) {
  stream_->Launch([&work] {
    c10::InferenceMode guard;
    work();
  });
  stream_->Synchronize();
  const Status status = stream_->TakeError();
  CHECK(status.ok()) << status.ToString();
}

AttentionEvent RemoteDecoder::Wait(AttentionEvent::Kind kind) {
  for (;;) {
    std::optional<AttentionEvent> event = attention_->Poll();
    if (!event.has_value()) continue;
    CHECK(event->kind == kind) << "unexpected event, " << event->reason.ToString();
    return std::move(*event);
  }
}

at::Tensor RemoteDecoder::Prefill(std::span<const std::vector<int32_t>> prompts) {
  std::vector<int64_t> sequences;
  std::vector<int32_t> last;
  for (size_t i = 0; i < prompts.size(); ++i) {
    sequences.push_back(static_cast<int64_t>(i));
    last.push_back(prompts[i].back());
    const int64_t length = static_cast<int64_t>(prompts[i].size()) - 1;
    lengths_.push_back(length);
    if (length == 0) continue;
    at::Tensor x, qkv;
    OnStream([&] { x = model_.Embed(Ids(std::span<const int32_t>(prompts[i]).first(prompts[i].size() - 1))); });
    for (int layer = 0; layer < shape_.num_layers; ++layer) {
      at::Tensor kv;
      OnStream([&] {
        qkv = model_.AttentionIn(layer, x, at::arange(length));
        x = model_.AttentionOut(layer, x, model_.PrefillAttention(qkv, std::vector<int64_t>{length}));
        kv = SaturatedF16(qkv.narrow(1, shape_.q_width(), 2 * shape_.kv_width())).contiguous();
      });
      Push(static_cast<int64_t>(i), layer, kv);
    }
    const int rworker = static_cast<int>(i) % rworkers_;
    while (!attention_->FinishPrefill(rworker, i + 1, static_cast<int>(length)).ok()) {
      CHECK(!attention_->Poll().has_value());
    }
    CHECK_EQ(Wait(AttentionEvent::Kind::kPrefillDone).sequence, i + 1);
  }
  return Decode(sequences, last);
}

void RemoteDecoder::Push(int64_t sequence, int layer, const at::Tensor& kv) {
  const int64_t length = kv.size(0);
  const int rworker = static_cast<int>(sequence) % rworkers_;
  for (int64_t begin = 0; begin < length;) {
    Result<HostRows> piece = attention_->AcquireKv(rworker);
    if (!piece.ok()) {
      CHECK(!attention_->Poll().has_value());
      continue;
    }
    CHECK(!piece->lost);
    const int64_t rows = std::min<int64_t>(attention_->max_push_rows(), length - begin);
    HostRowsTensor(piece->data, rows, kv.size(1)).copy_(kv.narrow(0, begin, rows));
    CHECK(attention_
              ->SubmitKv(*piece, static_cast<SequenceId>(sequence + 1), layer, static_cast<int>(begin),
                         static_cast<int>(rows))
              .ok());
    begin += rows;
  }
}

RemoteDecoder::Order RemoteDecoder::ByRWorker(std::span<const int64_t> sequences) const {
  Order order;
  for (int r = 0; r < rworkers_; ++r) {
    RowSlice slice{.rworker = r, .row_begin = static_cast<int>(order.sequences.size())};
    for (size_t i = 0; i < sequences.size(); ++i) {
      if (sequences[i] % rworkers_ != r) continue;
      order.sequences.push_back(sequences[i]);
      order.from.push_back(static_cast<int64_t>(i));
      ++slice.rows;
    }
    if (slice.rows > 0) order.slices.push_back(slice);
  }
  return order;
}

at::Tensor RemoteDecoder::Decode(std::span<const int64_t> sequences, std::span<const int32_t> tokens) {
  const Order order = ByRWorker(sequences);
  std::vector<StepRow> rows;
  std::vector<int64_t> ids, positions;
  for (size_t i = 0; i < order.sequences.size(); ++i) {
    int64_t& length = lengths_[static_cast<size_t>(order.sequences[i])];
    rows.push_back(
        {.sequence = static_cast<SequenceId>(order.sequences[i] + 1), .position = static_cast<uint32_t>(length)});
    ids.push_back(tokens[static_cast<size_t>(order.from[i])]);
    positions.push_back(length++);
  }
  ++step_;
  while (!attention_->BeginPass(0, step_, rows, order.slices).ok()) CHECK(!attention_->Poll().has_value());
  at::Tensor x;
  OnStream([&] { x = model_.Embed(Ids(std::span<const int64_t>(ids))); });
  const at::Tensor where = Ids(std::span<const int64_t>(positions));
  for (int layer = 0; layer < shape_.num_layers; ++layer) RunLayer(layer, order, where, &x);
  at::Tensor logits;
  OnStream([&] { logits = model_.Logits(x); });
  at::Tensor back = at::empty_like(logits);
  back.index_copy_(0, Ids(std::span<const int64_t>(order.from)), logits);
  return back;
}

void RemoteDecoder::RunLayer(int layer, const Order& order, const at::Tensor& positions, at::Tensor* x) {
  Result<std::span<const HostRows>> slots = attention_->AcquireQkv(0);
  while (!slots.ok()) {
    CHECK(!attention_->Poll().has_value());
    slots = attention_->AcquireQkv(0);
  }
  OnStream([&] {
    at::Tensor row_max;
    ScatterRows(model_.AttentionIn(layer, *x, positions), *slots, shape_.qkv_width(), &row_max);
  });
  CHECK(attention_->SubmitQkv(0, layer).ok());
  const AttentionEvent event = Wait(AttentionEvent::Kind::kAttended);
  OnStream([&] {
    at::Tensor o;
    GatherRows(event.o, positions.size(0), shape_.q_width(), x->options(), &o);
    *x = model_.AttentionOut(layer, *x, o);
  });
  attention_->ReleaseO(0);
  CHECK_EQ(order.sequences.size(), static_cast<size_t>(positions.size(0)));
}

}  // namespace fastdecode::testing
