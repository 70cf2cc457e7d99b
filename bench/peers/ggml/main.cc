// peer_ggml: ggml's flash attention on the CPU, as a decode step of many sequences asks for it.
//
// Unit: GB/s of K and V in the format's own bytes (10^9; Q and O are not counted), and cached
// tokens attended to a second, summed over sequences and layers. There are as many
// layers as it takes to touch 1 GiB and three times the last-level cache; a pass goes over all
// of them, or, where that takes over half a second, over the next few.
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

constexpr double kTrialSeconds = 0.1;
constexpr int kTrials = 3;  // of which the fastest counts
constexpr double kPassSeconds = 0.5;

// What is timed: `layers` of them in the fastest form, going on where the last pass stopped, so
// that all of K and V is read between two reads of the same layer.
struct Plan {
  Form form = Form::kBatch;
  int64_t next = 0;
  int64_t layers = 1;  // of a pass: all, or what takes kPassSeconds
};

// Seconds, or below 0 where ggml failed.
double Pass(Attention& attention, Plan& plan, int64_t all_layers) {
  attention.Prepare(plan.form, plan.next, plan.layers);
  plan.next = (plan.next + plan.layers) % all_layers;
  return attention.Compute();
}

// Tries each form on some layers.
Plan Fastest(Attention& attention, int64_t all_layers, std::string& error) {
  Plan best;
  double best_s = -1;  // a layer
  int64_t next = 0;
  for (const Form form : attention.Forms()) {
    Plan plan{form, next, 1};
    Pass(attention, plan, all_layers);
    const double wrong = attention.RelativeError();
    if (!(wrong < kWorstError)) error = std::string(FormName(form)) + ": relative error " + std::to_string(wrong);
    const double one_s = Pass(attention, plan, all_layers);
    plan.layers = std::clamp<int64_t>(static_cast<int64_t>(kTrialSeconds / one_s), 1, all_layers);
    double s = Pass(attention, plan, all_layers);
    for (int trial = 1; trial < kTrials; ++trial) s = std::min(s, Pass(attention, plan, all_layers));
    s /= static_cast<double>(plan.layers);
    if (s <= 0) error = std::string("ggml_graph_compute failed: ") + FormName(form);
    next = plan.next;
    if (best_s < 0 || s < best_s) {
      best = plan;
      best_s = s;
    }
  }
  best.next = next;
  best.layers = std::clamp<int64_t>(static_cast<int64_t>(kPassSeconds / best_s), 1, all_layers);
  return best;
}

void WaitForTurn() {
  std::printf("ready\n");
  std::fflush(stdout);
  for (int c = 0; c != '\n' && c != EOF;) c = std::getchar();
}

// "1.2,3.4"
std::string List(const std::vector<double>& values) {
  std::string text;
  for (const double value : values) text += (text.empty() ? "" : ",") + std::to_string(value);
  return text;
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
  Plan plan = Fastest(attention, layers, error);
  std::vector<double> rates;
  for (int pass = -1; pass < c.passes && error.empty(); ++pass) {
    if (c.in_turns && pass >= 0) WaitForTurn();
    const double s = Pass(attention, plan, layers);
    if (s <= 0) error = "ggml_graph_compute failed";
    if (pass >= 0) rates.push_back(static_cast<double>(layer_bytes * plan.layers) / s / 1e9);  // the first warms up
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
      "\"min\":%.4g,\"max\":%.4g,\"by_pass\":[%s],\"tokens_per_s\":%.5g,\"relative_error\":%.3g}\n",
      ggml_version(), static_cast<long long>(c.heads), static_cast<long long>(c.kv_heads),
      static_cast<long long>(c.head_dim), Contexts(c).c_str(), c.threads, c.kv_dtype.c_str(),
      ggml_type_name(type->second), static_cast<long long>(layers), static_cast<long long>(layer_bytes * plan.layers),
      c.passes, FormName(plan.form), median, *std::min_element(rates.begin(), rates.end()),
      *std::max_element(rates.begin(), rates.end()), List(rates).c_str(),
      median * 1e9 / static_cast<double>(layer_bytes) * static_cast<double>(c.context_tokens()),
      attention.RelativeError());
  return 0;
}

}  // namespace
}  // namespace fastdecode::peers

int main(int argc, char** argv) { return fastdecode::peers::Run(fastdecode::peers::ParseCase(argc, argv)); }
