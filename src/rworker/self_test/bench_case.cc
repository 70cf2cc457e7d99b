#include "rworker/self_test/bench_case.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>
#include <string_view>

#include "common/base/clock.h"
#include "kernels/f16.h"
#include "kernels/kv_codecs.h"
#include "rworker/attention_service.h"
#include "rworker/cpu_topology.h"
#include "rworker/host_limits.h"
#include "rworker/read_bandwidth.h"

namespace fastdecode::bench {
namespace {

using rworker::AttentionService;

constexpr int64_t kMostBytes = int64_t{4} << 30;  // of K and V in all layers, unless one has more
constexpr int kTries = 5;                         // of a pass
constexpr double kSteady = 0.1;                   // how far the probe may move over a pass

std::vector<uint16_t> RandomRows(int64_t elements, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  std::vector<uint16_t> rows(static_cast<size_t>(elements));
  for (uint16_t& x : rows) x = kernels::FloatToHalf(normal(random));
  return rows;
}

// Fills every sequence up to its last token, one block at a time in random order of the
// sequences, so that their blocks lie as mixed as after a long day.
Status Fill(AttentionService& service, const BenchCase& c, const std::vector<int>& contexts) {
  const AttentionShape& shape = service.shape();
  const std::vector<uint16_t> rows = RandomRows(c.block_tokens * 2 * shape.kv_width(), 1);
  std::vector<uint64_t> order;
  for (size_t sequence = 0; sequence < contexts.size(); ++sequence) {
    for (int t = 0; t < contexts[sequence] - 1; t += c.block_tokens) order.push_back(sequence);
  }
  std::shuffle(order.begin(), order.end(), std::mt19937_64(2));
  std::vector<int64_t> position(contexts.size(), 0);
  for (const uint64_t sequence : order) {
    int64_t& at = position[sequence];
    const int64_t count = std::min<int64_t>(c.block_tokens, contexts[sequence] - 1 - at);
    for (int layer = 0; layer < shape.num_layers; ++layer) {
      FD_RETURN_IF_ERROR(service.AppendPrefill(sequence, layer, at, count, rows.data()));
    }
    at += count;
  }
  return OkStatus();
}

// One step over all layers; the time of the attention alone.
Result<int64_t> Pass(AttentionService& service, const std::vector<int>& contexts, const std::vector<uint16_t>& qkv,
                     std::vector<uint16_t>& o) {
  std::vector<StepRow> rows;
  for (size_t sequence = 0; sequence < contexts.size(); ++sequence) {
    rows.push_back({sequence, static_cast<uint32_t>(contexts[sequence] - 1), 0});
  }
  FD_RETURN_IF_ERROR(service.BeginStep(0, 0, rows));
  const int64_t start_ns = NowNs();
  for (int layer = 0; layer < service.shape().num_layers; ++layer) {
    rworker::AttendInfo info;
    FD_RETURN_IF_ERROR(service.Attend(0, 0, layer, qkv.data(), std::ssize(contexts), o.data(), &info));
  }
  return NowNs() - start_ns;
}

Status CheckCase(const BenchCase& c) {
  if (c.batch < 1 || c.context < 1 || c.passes < 1 || c.kv_heads < 1 || c.head_dim < 1 || c.block_tokens < 1 ||
      c.threads < 0 || c.heads < 1) {
    return InvalidArgument("every number of a case is at least 1 (threads: 0 takes what this process may use)");
  }
  return OkStatus();
}

// A number of at least 1, or 0.
int Positive(std::string_view text) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc{} && end == text.data() + text.size() ? std::max(value, 0) : 0;
}

// Cached tokens of each sequence.
Result<std::vector<int>> Contexts(const BenchCase& c) {
  if (c.contexts.empty()) return std::vector<int>(static_cast<size_t>(c.batch), c.context);
  std::vector<int> contexts;
  std::string_view rest = c.contexts;
  while (!rest.empty()) {
    const std::string_view item = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(rest.size(), item.size() + 1));
    const size_t x = item.find('x');
    const int sequences = x == std::string_view::npos ? 1 : Positive(item.substr(0, x));
    const int context = Positive(x == std::string_view::npos ? item : item.substr(x + 1));
    if (sequences == 0 || sequences > 65536 || context == 0) {
      return InvalidArgument("--contexts: expected sequences by length, as in 1x16384,63x128, got '" +
                             std::string(item) + "'");
    }
    contexts.insert(contexts.end(), static_cast<size_t>(sequences), context);
  }
  return contexts;
}

Result<kernels::KvCodec> Codec(const kernels::AttentionKernel& kernel, std::string_view names) {
  if (const auto codes = kernels::CodesOf(names)) return kernels::CodecOf(kernel, *codes);
  return InvalidArgument("--kv_dtype " + std::string(names) + ": expected one of " + kernels::FormatList() +
                         ", or two of them as in int8/int4 (keys/values)");
}

// "1x16384,63x128", longest first.
std::string ContextsText(const std::vector<int>& contexts) {
  std::map<int, int, std::greater<>> by_length;
  for (const int context : contexts) ++by_length[context];
  std::string text;
  for (const auto& [context, sequences] : by_length) {
    text += (text.empty() ? "" : ",") + std::to_string(sequences) + "x" + std::to_string(context);
  }
  return text;
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

// How far the rates lie apart, of their median.
double Spread(const std::vector<double>& rates) {
  const auto [least, most] = std::minmax_element(rates.begin(), rates.end());
  return (*most - *least) / Median(rates);
}

// Of read bandwidth, by pass.
std::vector<double> Shares(const BenchResult& r) {
  std::vector<double> shares;
  for (size_t pass = 0; pass < r.attend.size(); ++pass) shares.push_back(r.attend[pass] / r.read[pass]);
  return shares;
}

}  // namespace

double ShareOfRead(const BenchResult& result) { return Median(Shares(result)); }

Result<BenchResult> RunBench(const BenchCase& c) {
  FD_RETURN_IF_ERROR(CheckCase(c));
  FD_ASSIGN_OR_RETURN(const std::vector<int> contexts, Contexts(c));
  const auto batch = static_cast<int32_t>(contexts.size());
  const int longest = *std::max_element(contexts.begin(), contexts.end());
  const kernels::KernelChoice choice = kernels::ChooseAttentionKernel(c.kernel, kernels::DetectCpuFeatures());
  if (choice.kernel == nullptr) return InvalidArgument(choice.error);
  FD_ASSIGN_OR_RETURN(const kernels::KvCodec codec, Codec(*choice.kernel, c.kv_dtype));
  rworker::KvGeometry geometry{{1, c.heads, c.kv_heads, c.head_dim}, c.block_tokens, longest, batch, codec};
  const int64_t tokens = std::accumulate(contexts.begin(), contexts.end(), int64_t{0});
  const int64_t layer_bytes = tokens * geometry.layout().block_bytes() / c.block_tokens;
  geometry.shape.num_layers = static_cast<int>(std::max<int64_t>(
      1, std::min((rworker::BytesBeyondCaches() + layer_bytes - 1) / layer_bytes, kMostBytes / layer_bytes)));
  const AttentionShape& shape = geometry.shape;
  const rworker::SessionLimits limits{.block_tokens = c.block_tokens,
                                      .max_context = longest,
                                      .max_sequences = batch,
                                      .max_rows = batch,
                                      .max_mini_batches = 1};
  int64_t blocks = 0;
  for (const int context : contexts) blocks += (context + c.block_tokens - 1) / c.block_tokens;
  rworker::PoolOptions pool_options;
  pool_options.topology = c.topology.nodes.empty() ? rworker::ReadCpuTopology(rworker::AllowedCpus()) : c.topology;
  pool_options.prefault_threads = rworker::AllowedThreads();
  rworker::ComputePool pool(c.threads, pool_options.topology);
  // A huge page and a block more on each NUMA node, so that rounding takes nothing away.
  pool_options.bytes = blocks * geometry.block_bytes() +
                       std::ssize(pool_options.topology.nodes) * ((int64_t{2} << 20) + geometry.block_bytes());
  FD_ASSIGN_OR_RETURN(rworker::PoolMemory memory, rworker::PoolMemory::Map(pool_options));
  FD_ASSIGN_OR_RETURN(std::unique_ptr<AttentionService> service,
                      AttentionService::Create(shape, limits, &memory, choice.kernel, codec, &pool));
  FD_RETURN_IF_ERROR(Fill(*service, c, contexts));

  BenchResult result;
  result.contexts = contexts;
  result.layers = shape.num_layers;
  result.pass_bytes = layer_bytes * shape.num_layers;
  result.kernel = choice.kernel->name;
  result.pages = memory.DescribePages();
  result.pinned = pool.pinned();
  const std::vector<uint16_t> qkv = RandomRows(batch * shape.qkv_width(), 3);
  std::vector<uint16_t> o(static_cast<size_t>(batch * shape.q_width()));
  FD_ASSIGN_OR_RETURN(int64_t warm_up_ns, Pass(*service, contexts, qkv, o));
  static_cast<void>(warm_up_ns);
  rworker::ReadBandwidth probe(&pool, memory.data(), memory.bytes(), memory.num_parts());
  const rworker::ReadMethod method = c.read_method.kernel != nullptr ? c.read_method : probe.FindBest();
  result.read_method = method.ToString();
  for (int pass = 0; pass < c.passes; ++pass) {
    if (c.before_pass) c.before_pass();
    double before = probe.Measure(method);
    for (int tries = 1;; ++tries) {
      FD_ASSIGN_OR_RETURN(const int64_t ns, Pass(*service, contexts, qkv, o));
      const double after = probe.Measure(method);
      const bool steady = std::abs(after - before) <= kSteady * std::min(before, after);
      if (steady || tries == kTries || c.before_pass) {
        result.attend.push_back(static_cast<double>(result.pass_bytes) * 1e9 / static_cast<double>(ns));
        result.read.push_back((before + after) / 2);
        result.unsteady += steady ? 0 : 1;
        break;
      }
      ++result.left_out;
      before = after;
    }
  }
  return result;
}

std::string ToJson(const BenchCase& c, const BenchResult& r) {
  const auto spread = [](const std::vector<double>& rates, nlohmann::ordered_json& to) {
    to["median"] = Median(rates) / 1e9;
    to["min"] = *std::min_element(rates.begin(), rates.end()) / 1e9;
    to["max"] = *std::max_element(rates.begin(), rates.end()) / 1e9;
    to["spread"] = Spread(rates);
    for (const double rate : rates) to["by_pass"].push_back(rate / 1e9);
  };
  nlohmann::ordered_json json;
  json["name"] = "decode_attention";
  json["case"] = {{"heads", c.heads},
                  {"kv_heads", c.kv_heads},
                  {"head_dim", c.head_dim},
                  {"contexts", ContextsText(r.contexts)},
                  {"threads", c.threads},
                  {"pinned", r.pinned},
                  {"kernel", r.kernel},
                  {"kv_dtype", c.kv_dtype},
                  {"block_tokens", c.block_tokens},
                  {"layers", r.layers},
                  {"pass_bytes", r.pass_bytes},
                  {"pages", r.pages},
                  {"passes", c.passes}};
  json["unit"] = "GB/s of K and V";
  spread(r.attend, json);
  const auto context_tokens = static_cast<double>(std::accumulate(r.contexts.begin(), r.contexts.end(), int64_t{0}));
  json["tokens_per_s"] = Median(r.attend) / static_cast<double>(r.pass_bytes) * context_tokens * r.layers;
  json["limit"] = {{"what", "read bandwidth: " + r.read_method}, {"unit", "GB/s"}};
  spread(r.read, json["limit"]);
  json["ratio"] = ShareOfRead(r);
  json["ratio_spread"] = Spread(Shares(r));
  json["left_out"] = r.left_out;
  json["unsteady"] = r.unsteady;
  return json.dump();
}

}  // namespace fastdecode::bench
