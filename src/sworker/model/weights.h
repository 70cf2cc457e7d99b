// A Llama model's weights by name, as the layers want them: products that share their
// input are stacked into one.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>

#include "common/base/status.h"
#include "common/config/model_config.h"
#include "sworker/device/device_runtime.h"
#include "sworker/model/checkpoint.h"

namespace fastdecode {

// All in the compute dtype, row-major, on the CPU. A bias that the model does not have is
// an undefined tensor.
struct LayerWeights {
  at::Tensor input_norm;       // [hidden]
  at::Tensor qkv, qkv_bias;    // [(num_heads + 2 num_kv_heads) * head_dim, hidden], Q, K, V stacked
  at::Tensor o, o_bias;        // [hidden, num_heads * head_dim]
  at::Tensor post_norm;        // [hidden]
  at::Tensor gate, gate_bias;  // [intermediate, hidden]
  at::Tensor up, up_bias;      // [intermediate, hidden]
  at::Tensor down, down_bias;  // [hidden, intermediate]
};
struct OuterWeights {
  at::Tensor embedding;  // [vocab, hidden]
  at::Tensor norm;       // [hidden]
  at::Tensor head;       // [vocab, hidden]; the embedding itself where they are tied
};

// Where weights come from. One thread.
class WeightReader {
 public:
  virtual ~WeightReader() = default;
  virtual bool Has(const std::string& name) const = 0;
  // Writes the tensor of that Hugging Face name and of out's shape to out, which is
  // contiguous, on the CPU, and of the compute dtype.
  virtual Status Fill(const std::string& name, const at::Tensor& out) = 0;
};

// A checkpoint's, widened or rounded to the compute dtype.
std::unique_ptr<WeightReader> MakeCheckpointReader(Checkpoint& checkpoint);
// Norms are 1; all else is N(0, 0.02), as an untrained Llama has it; the same for the same
// seed, whatever the number of threads.
std::unique_ptr<WeightReader> MakeRandomReader(uint64_t seed, DeviceRuntime& device);

Result<LayerWeights> ReadLayer(WeightReader& reader, const ModelConfig& config, at::ScalarType dtype, int layer);
Result<OuterWeights> ReadOuter(WeightReader& reader, const ModelConfig& config, at::ScalarType dtype);

}  // namespace fastdecode
