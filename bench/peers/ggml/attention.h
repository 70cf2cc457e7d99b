// Decode attention of many layers as ggml graphs over one K/V memory.
//
// K and V of a group of equally long sequences are [sequences, kv_heads, context, head_dim],
// the head-major order that ggml reads fastest; Q is [sequences, heads, head_dim], f32.
//
// Thread rule: one thread owns an Attention; ggml's own threads run inside Compute.
#pragma once

#include <ggml-cpu.h>
#include <ggml.h>

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "case.h"

namespace fastdecode::peers {

// Ways of putting the same sums to ggml_flash_attn_ext. Which is fastest depends on shape,
// threads and version, so the driver tries those that apply.
enum class Form {
  kBatch,     // one operation a group: threads share out the (sequence, head) rows
  kSequence,  // one operation a sequence: threads share out its tokens (ggml's split over K/V)
  kRows,      // the heads of a KV head as rows of one query: the tiled path from 64 of them on
};
const char* FormName(Form form);

class Attention {
 public:
  // `kv_type` is of K and V. Fills K, V and Q with normal numbers.
  Attention(const Case& c, ggml_type kv_type, int64_t layers);
  ~Attention();
  Attention(const Attention&) = delete;
  Attention& operator=(const Attention&) = delete;

  std::vector<Form> Forms() const;  // that apply to the case
  // Builds the graph that Compute runs: `count` layers from `first` on, the first one following
  // the last.
  void Prepare(Form form, int64_t first, int64_t count);
  double Compute();  // seconds, or below 0 if ggml failed

  // Of the last layer computed, for some of its rows: root mean square of the difference to attention in
  // double precision over the same K and V, relative to the latter's.
  double RelativeError() const;

 private:
  struct Layer {  // by group
    std::vector<ggml_tensor*> k, v;
  };
  void MapMemory(int64_t bytes);
  void Fill(int64_t bytes);
  void AddGroup(ggml_cgraph* graph, const Layer& layer, size_t group, int64_t first_sequence);
  const float* OutputRow(size_t group, int64_t sequence, int64_t head) const;
  std::vector<double> Expected(size_t group, int64_t sequence, int64_t head) const;

  const Case case_;
  const ggml_type kv_type_;
  Form form_ = Form::kBatch;
  size_t last_layer_ = 0;
  std::byte* memory_ = nullptr;
  size_t memory_bytes_ = 0;
  std::vector<float> q_, o_;
  std::vector<Layer> layers_;
  ggml_context* tensors_ = nullptr;  // K and V
  ggml_context* nodes_ = nullptr;    // of the present graph
  ggml_cgraph* graph_ = nullptr;
  ggml_threadpool* pool_ = nullptr;
  ggml_cplan plan_{};
  std::vector<uint8_t> work_;
};

}  // namespace fastdecode::peers
