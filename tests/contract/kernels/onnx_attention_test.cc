// ONNX's own vectors for its operators Attention and FlexAttention
// (tests/data/onnx_attention/README.md), all query rows of a sequence in one call. Their
// answers owe nothing to this project.
//
// Q, K and V become f16; those that are f16 already make the sharper test. Heads are padded
// with zeros to a multiple of 8 elements, which changes no sum; so K and V may differ in
// size. A mask that is added to the scores becomes 2 * rows more elements of the head: a
// query row has a one in its own two, a key the mask's number there, as the sum of two f16.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>

#include "attention_case.h"
#include "stored.h"

namespace fastdecode::kernels {
namespace {

struct Tensor {
  std::string dtype;
  std::vector<int> dims;
  std::vector<double> values;
};

struct File {
  nlohmann::json header;
  nlohmann::json attributes;
  std::string test;
  std::string data;

  bool Has(const std::string& name) const { return header.contains(name); }
  Tensor Read(const std::string& name) const {
    const nlohmann::json& entry = header.at(name);
    Tensor tensor{entry.at("dtype").get<std::string>(), entry.at("shape").get<std::vector<int>>(), {}};
    const size_t end = entry.at("data_offsets")[1];
    for (size_t at = entry.at("data_offsets")[0]; at < end;) at += ReadNumber(tensor, at);
    return tensor;
  }

 private:
  template <typename T>
  T Raw(size_t at) const {
    T value;
    std::memcpy(&value, data.data() + at, sizeof(T));
    return value;
  }
  size_t ReadNumber(Tensor& tensor, size_t at) const {
    const std::string& type = tensor.dtype;
    if (type == "F16") tensor.values.push_back(HalfValue(Raw<uint16_t>(at)));
    if (type == "F32") tensor.values.push_back(double{Raw<float>(at)});
    if (type == "F64") tensor.values.push_back(Raw<double>(at));
    if (type == "I64") tensor.values.push_back(static_cast<double>(Raw<int64_t>(at)));
    if (type == "BOOL") tensor.values.push_back(Raw<char>(at) != 0 ? 0 : -std::numeric_limits<double>::infinity());
    return type == "F16" ? 2 : type == "F32" ? 4 : type == "BOOL" ? 1 : 8;
  }
};

File ReadFile(const std::filesystem::path& path) {
  std::ifstream stream(path, std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(stream), {}};
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, bytes.data(), 8);
  File file;
  file.header = nlohmann::json::parse(bytes.substr(8, header_bytes));
  file.attributes = nlohmann::json::parse(file.header.at("__metadata__").at("attrs").get<std::string>());
  file.test = file.header.at("__metadata__").at("test").get<std::string>();
  file.data = bytes.substr(8 + header_bytes);
  return file;
}

// [batch, tokens, heads * dim] or [batch, heads, tokens, dim].
struct Heads {
  Heads(Tensor from, int heads_if_3d) : tensor(std::move(from)) {
    const std::vector<int>& d = tensor.dims;
    three_d = d.size() == 3;
    batch = d[0];
    heads = three_d ? heads_if_3d : d[1];
    tokens = three_d ? d[1] : d[2];
    dim = three_d ? d[2] / heads : d[3];
  }
  double At(int b, int head, int token, int element) const {
    const int row = three_d ? (b * tokens + token) * heads + head : (b * heads + head) * tokens + token;
    return tensor.values[static_cast<size_t>(row * dim + element)];
  }
  Tensor tensor;
  bool three_d = false;
  int batch = 0, heads = 0, tokens = 0, dim = 0;
};

// Broadcast over batch and heads; -infinity past its last column.
struct Mask {
  explicit Mask(Tensor from) : tensor(std::move(from)) {
    std::copy(tensor.dims.begin(), tensor.dims.end(), dims + (4 - tensor.dims.size()));
  }
  double At(int b, int head, int row, int token) const {
    if (token >= dims[3]) return -std::numeric_limits<double>::infinity();
    const int plane = std::min(b, dims[0] - 1) * dims[1] + std::min(head, dims[1] - 1);
    return tensor.values[static_cast<size_t>((plane * dims[2] + row) * dims[3] + token)];
  }
  Tensor tensor;
  int dims[4] = {1, 1, 1, 1};
};

class OnnxCase {
 public:
  explicit OnnxCase(const File& file)
      : q_(file.Read("in.Q"), file.attributes.value("q_num_heads", 0)),
        k_(file.Read("in.K"), file.attributes.value("kv_num_heads", 0)),
        v_(file.Read("in.V"), file.attributes.value("kv_num_heads", 0)),
        y_(file.Read("out.Y"), file.attributes.value("q_num_heads", 0)),
        scale_(file.attributes.value("scale", 1 / std::sqrt(q_.dim))),
        soft_cap_(file.attributes.value("softcap", 0.0)),
        causal_(file.attributes.value("is_causal", 0) != 0) {
    if (file.Has("in.attn_mask")) mask_.emplace_back(file.Read("in.attn_mask"));
    if (file.Has("in.past_key")) {
      past_.emplace_back(file.Read("in.past_key"), 0);
      past_.emplace_back(file.Read("in.past_value"), 0);
    }
    if (file.Has("in.nonpad_kv_seqlen")) lengths_ = file.Read("in.nonpad_kv_seqlen").values;
    // The functions that these two take are not in the file; this is what they say.
    if (file.test == "test_flexattention_causal_mask") causal_ = true;
    if (file.test == "test_flexattention_soft_cap") soft_cap_ = 20;
  }

  void CheckBatch(int b) const {
    const int length = Length(b);
    const bool masked = AddsNumbers(b, length);
    // The cap comes before the mask, which is one of the scores' terms here.
    ASSERT_FALSE(masked && soft_cap_ != 0) << "cannot be posed";
    ASSERT_TRUE(!masked || mask_[0].dims[1] == 1 || q_.heads == k_.heads) << "a mask for each head of a group";
    CaseSpec spec;
    spec.num_kv_heads = k_.heads;
    spec.group = q_.heads / k_.heads;
    spec.head_dim = (std::max(q_.dim + (masked ? 2 * q_.tokens : 0), v_.dim) + 7) / 8 * 8;
    spec.length = length;
    spec.rows = q_.tokens;
    // Rows that are no tokens of the sequence see all of it, as its last one does.
    spec.first_position = causal_ ? PastTokens() : length - 1;
    spec.soft_cap = static_cast<float>(soft_cap_);
    AttentionCase test(spec, 1);
    test.scale = static_cast<float>(scale_);
    Fill(b, masked, test);
    test.Cache();
    for (const AttentionKernel* kernel : RunnableKernels()) {
      SCOPED_TRACE(std::string(kernel->name) + ", batch " + std::to_string(b));
      CheckRows(test.Attend(*kernel).out, test, b);
      CheckRows(test.Merge(*kernel, test.AttendRanges(*kernel, kTileTokens)).out, test, b);
      if (testing::Test::HasFatalFailure()) return;
    }
  }
  int batches() const { return q_.batch; }

 private:
  int PastTokens() const { return past_.empty() ? 0 : past_[0].tokens; }
  double Key(int b, int head, int token, int d) const {
    return token < PastTokens() ? past_[0].At(b, head, token, d) : k_.At(b, head, token - PastTokens(), d);
  }
  double Value(int b, int head, int token, int d) const {
    return token < PastTokens() ? past_[1].At(b, head, token, d) : v_.At(b, head, token - PastTokens(), d);
  }
  // Up to the last token that some row sees.
  int Length(int b) const {
    if (!lengths_.empty()) return static_cast<int>(lengths_[static_cast<size_t>(b)]);
    int length = PastTokens() + k_.tokens;
    const auto unseen = [&](int token) {
      for (int row = 0; row < q_.tokens; ++row) {
        for (int h = 0; h < q_.heads; ++h) {
          if (!std::isinf(mask_[0].At(b, h, row, token))) return false;
        }
      }
      return true;
    };
    while (!mask_.empty() && unseen(length - 1)) --length;
    return length;
  }
  bool AddsNumbers(int b, int length) const {
    for (int h = 0; !mask_.empty() && h < q_.heads; ++h) {
      for (int row = 0; row < q_.tokens; ++row) {
        for (int t = 0; t < length; ++t) {
          if (mask_[0].At(b, h, row, t) != 0) return true;
        }
      }
    }
    return false;
  }

  void Fill(int b, bool masked, AttentionCase& test) const {
    for (auto* of : {&test.q, &test.k, &test.v}) std::fill(of->begin(), of->end(), uint16_t{0});
    for (int row = 0; row < q_.tokens; ++row) {
      for (int h = 0; h < q_.heads; ++h) {
        for (int d = 0; d < q_.dim; ++d) test.q[test.At(row, h, d)] = NearestHalf(q_.At(b, h, row, d));
        for (int i = 0; masked && i < 2; ++i) test.q[test.At(row, h, q_.dim + 2 * row + i)] = NearestHalf(1);
      }
    }
    for (int t = 0; t < test.spec().length; ++t) {
      for (int h = 0; h < k_.heads; ++h) {
        for (int d = 0; d < k_.dim; ++d) test.k[test.KvAt(t, h, d)] = NearestHalf(Key(b, h, t, d));
        for (int d = 0; d < v_.dim; ++d) test.v[test.KvAt(t, h, d)] = NearestHalf(Value(b, h, t, d));
        for (int row = 0; masked && row < q_.tokens; ++row) {
          const double number = mask_[0].At(b, h, row, t) / scale_;
          const uint16_t high = NearestHalf(number);
          test.k[test.KvAt(t, h, q_.dim + 2 * row)] = high;
          test.k[test.KvAt(t, h, q_.dim + 2 * row + 1)] = NearestHalf(number - HalfValue(high));
        }
      }
    }
  }

  void CheckRows(const std::vector<uint16_t>& out, const AttentionCase& test, int b) const {
    double largest = 0;  // of what is seen: one case has larger values beyond the sequence
    for (const double v : v_.tensor.values) largest = std::max(largest, std::min(std::fabs(v), 4.0));
    // Two roundings to f16 (2^-12 below 1, 2^-11 below 2): of the answer on both sides, or of the answer and of V; the
    // rest is for Q and K.
    const double unit = 0x1p-12 * std::exp2(std::ceil(std::log2(largest)));
    const double tolerance = 2.02 * unit;
    for (int row = 0; row < q_.tokens; ++row) {
      for (int h = 0; h < q_.heads; ++h) {
        for (int d = 0; d < y_.dim; ++d) {
          ASSERT_NEAR(HalfValue(out[test.At(row, h, d)]), y_.At(b, h, row, d), tolerance)
              << "row " << row << ", head " << h << ", element " << d;
        }
      }
    }
  }

  Heads q_, k_, v_, y_;
  double scale_;
  double soft_cap_;
  bool causal_;
  std::vector<Mask> mask_;   // one or none
  std::vector<Heads> past_;  // keys and values, or none
  std::vector<double> lengths_;
};

TEST(OnnxAttention, EveryCaseOnEveryKernel) {
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(FD_ONNX_ATTENTION)) {
    if (entry.path().extension() != ".safetensors") continue;
    SCOPED_TRACE(entry.path().filename().string());
    const OnnxCase vectors(ReadFile(entry.path()));
    for (int batch = 0; batch < vectors.batches(); ++batch) ASSERT_NO_FATAL_FAILURE(vectors.CheckBatch(batch));
    ++files;
  }
  EXPECT_EQ(files, 42);
}

}  // namespace
}  // namespace fastdecode::kernels
