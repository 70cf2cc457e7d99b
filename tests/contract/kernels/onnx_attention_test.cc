// ONNX's own vectors for its operator Attention (tests/data/onnx_attention/README.md),
// posed query row by query row. Inputs in f32 are rounded to f16 first, which moves a
// result by about 2^-11 of the values' size.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>

#include "attention_case.h"

namespace fastdecode::kernels {
namespace {

struct Tensor {
  std::vector<int> dims;
  std::vector<double> values;
};

struct Vectors {
  Tensor q, k, v, y;
  int q_heads = 0, kv_heads = 0, head_dim = 0;
  bool causal = false;
  double scale = 0;
  bool three_d = false;
};

Tensor ReadTensor(const nlohmann::json& header, const std::string& name, const char* data) {
  const nlohmann::json& entry = header.at(name);
  Tensor tensor;
  tensor.dims = entry.at("shape").get<std::vector<int>>();
  const size_t begin = entry.at("data_offsets")[0];
  const size_t end = entry.at("data_offsets")[1];
  const bool half = entry.at("dtype") == "F16";
  for (size_t at = begin; at < end; at += half ? 2 : 4) {
    float single = 0;
    uint16_t bits = 0;
    std::memcpy(half ? static_cast<void*>(&bits) : &single, data + at, half ? 2 : 4);
    tensor.values.push_back(half ? HalfValue(bits) : double{single});
  }
  return tensor;
}

Vectors ReadVectors(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(file), {}};
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, bytes.data(), 8);
  const nlohmann::json header = nlohmann::json::parse(bytes.substr(8, header_bytes));
  const char* const data = bytes.data() + 8 + header_bytes;
  const nlohmann::json attributes = nlohmann::json::parse(header.at("__metadata__").at("attrs").get<std::string>());
  Vectors vectors{ReadTensor(header, "in.Q", data), ReadTensor(header, "in.K", data), ReadTensor(header, "in.V", data),
                  ReadTensor(header, "out.Y", data)};
  vectors.three_d = vectors.q.dims.size() == 3;
  vectors.q_heads = vectors.three_d ? attributes.at("q_num_heads").get<int>() : vectors.q.dims[1];
  vectors.kv_heads = vectors.three_d ? attributes.at("kv_num_heads").get<int>() : vectors.k.dims[1];
  vectors.head_dim = vectors.three_d ? vectors.q.dims[2] / vectors.q_heads : vectors.q.dims[3];
  vectors.causal = attributes.value("is_causal", 0) != 0;
  vectors.scale = attributes.value("scale", 1 / std::sqrt(vectors.head_dim));
  return vectors;
}

// Index of (batch, token, head, 0): [batch, tokens, heads * dim] or [batch, heads, tokens, dim].
size_t Index(const Vectors& v, int tokens, int heads, int batch, int token, int head) {
  const int row = v.three_d ? (batch * tokens + token) * heads + head : (batch * heads + head) * tokens + token;
  return static_cast<size_t>(row * v.head_dim);
}

void CheckRow(const DecodeAttentionKernel& kernel, const Vectors& vectors, int batch, int query) {
  const int tokens_axis = vectors.three_d ? 1 : 2;
  const int q_tokens = vectors.q.dims[static_cast<size_t>(tokens_axis)];
  const int kv_tokens = vectors.k.dims[static_cast<size_t>(tokens_axis)];
  const int length = vectors.causal ? query + 1 : kv_tokens;
  AttentionCase test({vectors.kv_heads, vectors.q_heads / vectors.kv_heads, vectors.head_dim, 4, length}, 1);
  test.scale = static_cast<float>(vectors.scale);
  for (int d = 0; d < vectors.head_dim; ++d) {
    const auto offset = static_cast<size_t>(d);
    for (int h = 0; h < vectors.q_heads; ++h) {
      const size_t from = Index(vectors, q_tokens, vectors.q_heads, batch, query, h) + offset;
      test.q[static_cast<size_t>(h * vectors.head_dim) + offset] = NearestHalf(vectors.q.values[from]);
    }
    for (int t = 0; t < length; ++t) {
      for (int h = 0; h < vectors.kv_heads; ++h) {
        const size_t from = Index(vectors, kv_tokens, vectors.kv_heads, batch, t, h) + offset;
        const size_t to = static_cast<size_t>((t * vectors.kv_heads + h) * vectors.head_dim) + offset;
        test.k[to] = NearestHalf(vectors.k.values[from]);
        test.v[to] = NearestHalf(vectors.v.values[from]);
      }
    }
  }
  test.Cache();
  const std::vector<uint16_t> out = test.Attend(kernel);
  for (int h = 0; h < vectors.q_heads; ++h) {
    for (int d = 0; d < vectors.head_dim; ++d) {
      const double right =
          vectors.y.values[Index(vectors, q_tokens, vectors.q_heads, batch, query, h) + static_cast<size_t>(d)];
      // Values lie in 0 .. 1: 2^-11 each from V, from the scores (Q and K) and from the result.
      ASSERT_NEAR(HalfValue(out[static_cast<size_t>(h * vectors.head_dim + d)]), right, 3 * 0x1p-11)
          << kernel.name << ", batch " << batch << ", query " << query << ", head " << h;
    }
  }
}

TEST(OnnxAttention, EveryCaseOnEveryKernel) {
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(FD_ONNX_ATTENTION)) {
    if (entry.path().extension() != ".safetensors") continue;
    SCOPED_TRACE(entry.path().filename().string());
    const Vectors vectors = ReadVectors(entry.path());
    for (const DecodeAttentionKernel& kernel : DecodeAttentionKernels()) {
      if ((kernel.features & ~DetectCpuFeatures()) != 0) continue;  // the contract test says so
      for (int batch = 0; batch < vectors.q.dims[0]; ++batch) {
        for (int query = 0; query < vectors.q.dims[vectors.three_d ? 1 : 2]; ++query) {
          CheckRow(kernel, vectors, batch, query);
          if (HasFatalFailure()) return;
        }
      }
    }
    ++files;
  }
  EXPECT_EQ(files, 13);
}

}  // namespace
}  // namespace fastdecode::kernels
