// peer_ggml: ggml's flash attention on the CPU, as a decode step of many sequences asks for it.
//
// Unit: GB/s of K and V in the format's own bytes (10^9; Q and O are not counted), and cached
// tokens attended to a second, summed over sequences and layers. A pass goes over as many
// layers as it takes to touch 1 GiB and three times the last-level cache.
#include <algorithm>
#include <cstdio>
#include <map>

#include "attention.h"

namespace fastdecode::peers {
namespace {

constexpr double kWorstError = 0.1;  // ggml sums f16 values in f16

std::string Contexts(const Case& c) {
  std::string text;
  for (const Group& g : c.groups) {
    text += (text.empty() ? "" : ",") + std::to_string(g.sequences) + "x" + std::to_string(g.context);
  }
  return text;
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

// The fastest form, by one pass of each that is not the first.
Form Fastest(Attention& attention, std::string& error) {
  Form best = Form::kBatch;
  double best_s = -1;
  for (const Form form : attention.Forms()) {
    attention.Prepare(form);
    attention.Compute();
    const double s = attention.Compute();
    if (s < 0) error = std::string("ggml_graph_compute failed: ") + FormName(form);
    const double wrong = attention.RelativeError();
    if (!(wrong < kWorstError)) {
      error = std::string(FormName(form)) + ": relative error " + std::to_string(wrong);
    }
    if (best_s < 0 || s < best_s) {
      best = form;
      best_s = s;
    }
  }
  return best;
}

int Run(const Case& c) {
  const std::map<std::string, ggml_type> types = {
      {"f16", GGML_TYPE_F16}, {"int8", GGML_TYPE_Q8_0}, {"int4", GGML_TYPE_Q4_0}};
  const auto type = types.find(c.kv_dtype);
  if (type == types.end() || c.head_dim % ggml_blck_size(type->second) != 0) {
    std::fprintf(stderr, "peer_ggml: no %s with head_dim %lld\n", c.kv_dtype.c_str(),
                 static_cast<long long>(c.head_dim));
    return 4;
  }
  ggml_cpu_init();
  const auto row_bytes = static_cast<int64_t>(ggml_row_size(type->second, c.head_dim));
  const int64_t layer_bytes = c.context_tokens() * 2 * c.kv_heads * row_bytes;
  const int64_t layers = LayersOf(c, layer_bytes);
  Attention attention(c, type->second, layers);
  std::string error;
  const Form form = Fastest(attention, error);
  attention.Prepare(form);
  std::vector<double> rates;
  for (int pass = -1; pass < c.passes && error.empty(); ++pass) {
    const double s = attention.Compute();
    if (s <= 0) error = "ggml_graph_compute failed";
    if (pass >= 0) rates.push_back(static_cast<double>(layer_bytes * layers) / s / 1e9);  // the first warms up
  }
  if (!error.empty()) {
    std::fprintf(stderr, "peer_ggml: %s\n", error.c_str());
    return 3;
  }
  const double median = Median(rates);
  std::printf(
      "{\"name\":\"decode_attention_peer\",\"peer\":\"ggml\",\"version\":\"%s\",\"case\":{\"heads\":%lld,"
      "\"kv_heads\":%lld,\"head_dim\":%lld,\"contexts\":\"%s\",\"threads\":%d,\"kv_dtype\":\"%s\",\"format\":\"%s\","
      "\"layers\":%lld,\"pass_bytes\":%lld,\"passes\":%d},\"how\":\"%s\",\"unit\":\"GB/s of K and V\",\"median\":%.4g,"
      "\"min\":%.4g,\"max\":%.4g,\"tokens_per_s\":%.5g,\"relative_error\":%.3g}\n",
      ggml_version(), static_cast<long long>(c.heads), static_cast<long long>(c.kv_heads),
      static_cast<long long>(c.head_dim), Contexts(c).c_str(), c.threads, c.kv_dtype.c_str(),
      ggml_type_name(type->second), static_cast<long long>(layers), static_cast<long long>(layer_bytes * layers),
      c.passes, FormName(form), median, *std::min_element(rates.begin(), rates.end()),
      *std::max_element(rates.begin(), rates.end()),
      median * 1e9 / static_cast<double>(layer_bytes) * static_cast<double>(c.context_tokens()),
      attention.RelativeError());
  return 0;
}

}  // namespace
}  // namespace fastdecode::peers

int main(int argc, char** argv) { return fastdecode::peers::Run(fastdecode::peers::ParseCase(argc, argv)); }
