// s_part_bench: what a layer's S-part costs beside its matrix products.
//
// Times, on the CPU, one layer's AttentionIn + AttentionOut (norms, rope, residuals,
// feed-forward; no attention) and its four matrix products alone: the same packed
// weights, the same threads, by turns in the same run. Unit: milliseconds. The products
// are the limit; ratio = S-part / products, both medians. One JSON object a line and case.
#include <ATen/ops/empty.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <c10/core/InferenceMode.h>
#include <gflags/gflags.h>

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/base/logging.h"
#include "common/flags/parse_flags.h"
#include "sworker/device/device_runtime.h"
#include "sworker/model/cpu_layer.h"

DEFINE_string(rows, "1,16,64,256", "numbers of rows, one case each");
DEFINE_string(dtype, "bf16", "bf16 or f32");
DEFINE_int32(threads, 1, "compute threads");
DEFINE_int32(hidden, 4096, "hidden size; the defaults are Llama-7b's");
DEFINE_int32(intermediate, 11008, "feed-forward size");
DEFINE_int32(heads, 32, "query heads");
DEFINE_int32(kv_heads, 32, "KV heads");
DEFINE_int32(head_dim, 128, "head size");
DEFINE_int32(layers, 2, "different layers that take turns, so that no cache holds the weights");
DEFINE_int32(repeats, 20, "timings a case, of each kind");

namespace fastdecode {
namespace {

constexpr int64_t kContext = 4096;

struct Layer {
  std::shared_ptr<const LayerProducts> products;
  std::unique_ptr<DecoderLayer> layer;
};

struct Inputs {
  Inputs(const ModelConfig& config, at::ScalarType dtype, int64_t rows)
      : x(at::randn({rows, config.hidden_size}).to(dtype)),
        o(at::randn({rows, config.attention.q_width()}).to(dtype)),
        inner(at::randn({rows, config.intermediate_size}).to(dtype)),
        positions(at::randint(kContext, {rows}, at::kLong)) {}
  at::Tensor x, o, inner, positions;
};

std::vector<Layer> MakeLayers(const ModelConfig& config, at::ScalarType dtype, DeviceRuntime& device,
                              const RopeTables& rope) {
  const auto reader = MakeRandomReader(1, device);
  std::vector<Layer> layers;
  for (int i = 0; i < FLAGS_layers; ++i) {
    const Result<LayerWeights> weights = ReadLayer(*reader, config, dtype, i);
    CHECK(weights.ok()) << weights.status().message();
    Layer layer;
    layer.products = std::make_shared<const LayerProducts>(*weights, config.attention, device.num_shards());
    layer.layer = MakeCpuLayer(config, device, rope, weights->input_norm, weights->post_norm, layer.products);
    layers.push_back(std::move(layer));
  }
  return layers;
}

void RunProducts(DeviceRuntime& device, const LayerProducts& products, const Inputs& in) {
  const auto run = [&](const ShardedLinear& linear, const at::Tensor& x) {
    device.ParallelShards([&](int shard) {
      if (linear.width(shard) > 0) linear.RunShard(shard, x);
    });
  };
  run(products.qkv, in.x);
  run(products.o, in.o);
  run(products.gate_up, in.x);
  run(products.down, in.inner);
}

void RunLayer(const DecoderLayer& layer, const Inputs& in) {
  layer.AttentionIn(in.x, in.positions);
  layer.AttentionOut(in.x, in.o);
}

template <typename Work>
double MillisecondsOf(Work&& work) {
  const int64_t start = NowNs();
  work();
  return static_cast<double>(NowNs() - start) * 1e-6;
}

double Median(std::vector<double>& times) {
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

nlohmann::ordered_json RunCase(DeviceRuntime& device, const std::vector<Layer>& layers, const Inputs& in) {
  std::vector<double> s_part, products;
  const auto count = static_cast<int>(layers.size());
  for (int i = -count; i < FLAGS_repeats; ++i) {  // a warm-up for each layer
    const Layer& a = layers[static_cast<size_t>(i + count) % layers.size()];
    const Layer& b = layers[static_cast<size_t>(i + count + 1) % layers.size()];
    const double s_ms = MillisecondsOf([&] { RunLayer(*a.layer, in); });
    const double p_ms = MillisecondsOf([&] { RunProducts(device, *b.products, in); });
    if (i < 0) continue;
    s_part.push_back(s_ms);
    products.push_back(p_ms);
  }
  const double median = Median(s_part), limit = Median(products);
  return {{"name", "s_part"},
          {"case",
           {{"rows", in.x.size(0)},
            {"dtype", FLAGS_dtype},
            {"threads", FLAGS_threads},
            {"hidden", FLAGS_hidden},
            {"intermediate", FLAGS_intermediate},
            {"heads", FLAGS_heads},
            {"kv_heads", FLAGS_kv_heads},
            {"head_dim", FLAGS_head_dim}}},
          {"unit", "ms"},
          {"median", median},
          {"min", s_part.front()},
          {"max", s_part.back()},
          {"limit", {{"what", "matrix products alone"}, {"value", limit}, {"min", products.front()}}},
          {"ratio", median / limit}};
}

bool ReadRows(std::vector<int64_t>& rows) {
  std::istringstream in(FLAGS_rows);
  for (std::string item; std::getline(in, item, ',');) {
    if (item.empty() || item.size() > 5 || item.find_first_not_of("0123456789") != std::string::npos) return false;
    rows.push_back(std::stoll(item));
    if (rows.back() == 0) return false;
  }
  return !rows.empty();
}

int Run() {
  std::vector<int64_t> rows;
  const bool bf16 = FLAGS_dtype == "bf16";
  const bool sizes = FLAGS_threads > 0 && FLAGS_hidden > 0 && FLAGS_intermediate > 0 && FLAGS_kv_heads > 0 &&
                     FLAGS_heads > 0 && FLAGS_heads % FLAGS_kv_heads == 0 && FLAGS_head_dim > 0 &&
                     FLAGS_head_dim <= kMaxHeadDim && FLAGS_head_dim % 8 == 0 && FLAGS_layers > 0 && FLAGS_repeats > 0;
  if (!ReadRows(rows) || !sizes || (!bf16 && FLAGS_dtype != "f32")) {
    std::fprintf(stderr, "s_part_bench: a flag is out of range; --help says what each means\n");
    return 2;
  }
  ModelConfig config;
  config.hidden_size = FLAGS_hidden;
  config.intermediate_size = FLAGS_intermediate;
  config.attention = {
      .num_layers = 1, .num_heads = FLAGS_heads, .num_kv_heads = FLAGS_kv_heads, .head_dim = FLAGS_head_dim};
  config.rms_norm_eps = 1e-5;
  const at::ScalarType dtype = bf16 ? at::kBFloat16 : at::kFloat;
  const auto device = MakeCpuRuntime(FLAGS_threads);
  LOG(INFO) << device->description();
  const auto stream = device->MakeStream();
  stream->Launch([&] {
    const RopeTables rope = MakeRopeTables(config.rope, FLAGS_head_dim, kContext);
    const std::vector<Layer> layers = MakeLayers(config, dtype, *device, rope);
    for (const int64_t n : rows) {
      std::printf("%s\n", RunCase(*device, layers, Inputs(config, dtype, n)).dump().c_str());
      std::fflush(stdout);
    }
  });
  stream->Synchronize();
  const Status status = stream->TakeError();
  if (status.ok()) return 0;
  std::fprintf(stderr, "s_part_bench: %s\n", status.message().c_str());
  return 1;
}

}  // namespace
}  // namespace fastdecode

int main(int argc, char** argv) {
  const fastdecode::ProgramText text = {"s_part_bench",
                                        "times a layer's S-part on the CPU against its matrix products alone"};
  if (const auto exit = fastdecode::ParseFlags(text, &argc, &argv)) return *exit;
  fastdecode::InitLogging(argv[0]);
  return fastdecode::Run();
}
