// A decode loop over real R-workers, one step at a time, with the caller choosing the
// tokens: the Model's S-part and RemoteAttention, without engine and scheduler.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "sworker/attention/remote_attention.h"
#include "sworker/device/device_runtime.h"
#include "sworker/model/model.h"
#include "tests/integration/rworker/harness.h"

namespace fastdecode::testing {

// Owner thread only. Sequences are dealt over the R-workers in turn.
class RemoteDecoder {
 public:
  RemoteDecoder(const Model& model, DeviceRuntime& device, int max_context, int rworkers, int max_rows);

  at::Tensor Prefill(std::span<const std::vector<int32_t>> prompts);
  // sequences: indices of prompts. -> logits [sequences.size(), vocab], f32
  at::Tensor Decode(std::span<const int64_t> sequences, std::span<const int32_t> tokens);

 private:
  struct Order {
    std::vector<int64_t> sequences;  // by R-worker
    std::vector<int64_t> from;       // where each stood in the caller's list
    std::vector<RowSlice> slices;
  };
  Order ByRWorker(std::span<const int64_t> sequences) const;
  AttentionEvent Wait(AttentionEvent::Kind kind);
  void OnStream(const std::function<void()>& work);
  void Push(int64_t sequence, int layer, const at::Tensor& kv);
  void RunLayer(int layer, const Order& order, const at::Tensor& positions, at::Tensor* x);

  const Model& model_;
  const AttentionShape& shape_;
  std::unique_ptr<DeviceStream> stream_;
  int rworkers_;
  std::vector<std::unique_ptr<RWorkerProcess>> processes_;
  std::unique_ptr<PoolHarness> pool_;
  std::unique_ptr<RemoteAttention> attention_;
  std::vector<int64_t> lengths_;  // tokens cached, a sequence
  uint64_t step_ = 0;
};

}  // namespace fastdecode::testing
