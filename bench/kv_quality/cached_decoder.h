// A decode loop over the R-worker's own paged cache, in this process, with the cache in a
// chosen format; and how far each O is from attention in double precision over K and V as
// they came, before they were stored.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "kernels/kv_codecs.h"
#include "rworker/attention_service.h"
#include "rworker/compute_pool.h"
#include "rworker/pool_memory.h"
#include "sworker/device/device_runtime.h"
#include "sworker/model/model.h"

namespace fastdecode::bench {

// |O - reference| of single elements over the root mean square of the reference's row of
// that layer (all heads).
struct OutputErrors {
  int64_t elements = 0;
  double sum = 0;
  double largest = 0;
  double mean() const { return elements == 0 ? 0 : sum / static_cast<double>(elements); }
};

// Prefill and Decode as tests/support/plain_decoder.h has them. Owner thread only.
class CachedDecoder {
 public:
  CachedDecoder(const Model& model, DeviceRuntime& device, const kernels::AttentionKernel& kernel,
                kernels::KvCodes codes, int max_context);

  at::Tensor Prefill(std::span<const std::vector<int32_t>> prompts);
  at::Tensor Decode(std::span<const int64_t> sequences, std::span<const int32_t> tokens);

  const OutputErrors& errors() const { return errors_; }  // of all steps of Decode
  int64_t token_bytes() const;                            // of the cache, all layers

 private:
  using Rows = std::vector<uint16_t>;  // f16

  void StartOver(int sequences);
  at::Tensor OnStream(const std::function<at::Tensor()>& work);
  void RunPrefill(std::span<const std::vector<int32_t>> prompts);
  at::Tensor RunDecode(std::span<const int64_t> sequences, std::span<const int32_t> tokens);
  Rows& Came(int64_t sequence, int layer) { return came_[static_cast<size_t>(sequence)][static_cast<size_t>(layer)]; }
  void Compare(const Rows& kv, const uint16_t* q, const uint16_t* o);

  const Model& model_;
  const AttentionShape& shape_;
  DeviceRuntime& device_;
  const kernels::AttentionKernel& kernel_;
  const kernels::KvCodec codec_;
  const int max_context_;
  rworker::ComputePool pool_{1, /*pin=*/false};
  rworker::PoolMemory memory_;
  std::unique_ptr<rworker::AttentionService> service_;
  std::vector<std::vector<Rows>> came_;  // by sequence and layer: [tokens, K | V]
  std::vector<int64_t> lengths_;         // tokens cached, by sequence
  uint64_t step_ = 0;
  OutputErrors errors_;
};

}  // namespace fastdecode::bench
