#include "rworker/self_test/bench_case.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <random>

#include "common/base/clock.h"
#include "kernels/f16.h"
#include "rworker/attention_service.h"
#include "rworker/cpu_topology.h"
#include "rworker/host_limits.h"
#include "rworker/read_bandwidth.h"

namespace fastdecode::bench {
namespace {

using rworker::AttentionService;

std::vector<uint16_t> RandomRows(int64_t elements, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  std::vector<uint16_t> rows(static_cast<size_t>(elements));
  for (uint16_t& x : rows) x = kernels::FloatToHalf(normal(random));
  return rows;
}

// Fills every sequence up to its last token, one block at a time in random order of the
// sequences, so that their blocks lie as mixed as after a long day.
Status Fill(AttentionService& service, const BenchCase& c) {
  const AttentionShape& shape = service.shape();
  const std::vector<uint16_t> rows = RandomRows(c.block_tokens * 2 * shape.kv_width(), 1);
  std::vector<uint64_t> order;
  const int tokens = c.context - 1;
  for (int sequence = 0; sequence < c.batch; ++sequence) {
    for (int t = 0; t < tokens; t += c.block_tokens) order.push_back(static_cast<uint64_t>(sequence));
  }
  std::shuffle(order.begin(), order.end(), std::mt19937_64(2));
  std::vector<int64_t> position(static_cast<size_t>(c.batch), 0);
  for (const uint64_t sequence : order) {
    int64_t& at = position[sequence];
    const int64_t count = std::min<int64_t>(c.block_tokens, tokens - at);
    for (int layer = 0; layer < shape.num_layers; ++layer) {
      FD_RETURN_IF_ERROR(service.AppendPrefill(sequence, layer, at, count, rows.data()));
    }
    at += count;
  }
  return OkStatus();
}

// One step over all layers; the time of the attention alone.
Result<int64_t> Pass(AttentionService& service, const BenchCase& c, const std::vector<uint16_t>& qkv,
                     std::vector<uint16_t>& o) {
  std::vector<StepRow> rows;
  for (int sequence = 0; sequence < c.batch; ++sequence) {
    rows.push_back({static_cast<uint64_t>(sequence), static_cast<uint32_t>(c.context - 1), 0});
  }
  FD_RETURN_IF_ERROR(service.BeginStep(0, 0, rows));
  const int64_t start_ns = NowNs();
  for (int layer = 0; layer < service.shape().num_layers; ++layer) {
    rworker::AttendInfo info;
    FD_RETURN_IF_ERROR(service.Attend(0, 0, layer, qkv.data(), c.batch, o.data(), &info));
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

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

}  // namespace

Result<BenchResult> RunBench(const BenchCase& c) {
  FD_RETURN_IF_ERROR(CheckCase(c));
  const kernels::KernelChoice choice = kernels::ChooseAttentionKernel(c.kernel, kernels::DetectCpuFeatures());
  if (choice.kernel == nullptr) return InvalidArgument(choice.error);
  AttentionShape shape{.num_layers = 1, .num_heads = c.heads, .num_kv_heads = c.kv_heads, .head_dim = c.head_dim};
  const int64_t layer_bytes = int64_t{c.batch} * c.context * 2 * shape.kv_width() * int64_t{sizeof(uint16_t)};
  shape.num_layers = static_cast<int>((rworker::BytesBeyondCaches() + layer_bytes - 1) / layer_bytes);
  const rworker::SessionLimits limits{.block_tokens = c.block_tokens,
                                      .max_context = c.context,
                                      .max_sequences = c.batch,
                                      .max_rows = c.batch,
                                      .max_mini_batches = 1};
  const kernels::KvCodec codec = kernels::CodecOf(*choice.kernel, kernels::KvFormat::kF16, kernels::KvFormat::kF16);
  const rworker::KvGeometry geometry{shape, c.block_tokens, c.context, c.batch, codec};
  rworker::PoolOptions pool_options;
  pool_options.topology = c.topology.nodes.empty() ? rworker::ReadCpuTopology(rworker::AllowedCpus()) : c.topology;
  pool_options.prefault_threads = rworker::AllowedThreads();
  rworker::ComputePool pool(c.threads, pool_options.topology);
  // A huge page and a block more on each NUMA node, so that rounding takes nothing away.
  pool_options.bytes = geometry.blocks_per_sequence() * geometry.block_bytes() * c.batch +
                       std::ssize(pool_options.topology.nodes) * ((int64_t{2} << 20) + geometry.block_bytes());
  FD_ASSIGN_OR_RETURN(rworker::PoolMemory memory, rworker::PoolMemory::Map(pool_options));
  FD_ASSIGN_OR_RETURN(std::unique_ptr<AttentionService> service,
                      AttentionService::Create(shape, limits, &memory, choice.kernel, codec, &pool));
  FD_RETURN_IF_ERROR(Fill(*service, c));

  BenchResult result;
  result.layers = shape.num_layers;
  result.pass_bytes = layer_bytes * shape.num_layers;
  result.kernel = choice.kernel->name;
  result.pages = memory.DescribePages();
  result.pinned = pool.pinned();
  const std::vector<uint16_t> qkv = RandomRows(c.batch * shape.qkv_width(), 3);
  std::vector<uint16_t> o(static_cast<size_t>(c.batch * shape.q_width()));
  FD_ASSIGN_OR_RETURN(int64_t warm_up_ns, Pass(*service, c, qkv, o));
  static_cast<void>(warm_up_ns);
  rworker::ReadBandwidth probe(&pool, memory.data(), memory.bytes(), memory.num_parts());
  const rworker::ReadMethod method = c.read_method.kernel != nullptr ? c.read_method : probe.FindBest();
  result.read_method = method.ToString();
  for (int pass = 0; pass < c.passes; ++pass) {
    result.read.push_back(probe.Measure(method));
    FD_ASSIGN_OR_RETURN(const int64_t ns, Pass(*service, c, qkv, o));
    result.attend.push_back(static_cast<double>(result.pass_bytes) * 1e9 / static_cast<double>(ns));
  }
  result.read.push_back(probe.Measure(method));
  return result;
}

std::string ToJson(const BenchCase& c, const BenchResult& r) {
  const auto spread = [](const std::vector<double>& rates, nlohmann::ordered_json& to) {
    to["median"] = Median(rates) / 1e9;
    to["min"] = *std::min_element(rates.begin(), rates.end()) / 1e9;
    to["max"] = *std::max_element(rates.begin(), rates.end()) / 1e9;
  };
  nlohmann::ordered_json json;
  json["name"] = "decode_attention";
  json["case"] = {{"heads", c.heads},       {"kv_heads", c.kv_heads},
                  {"head_dim", c.head_dim}, {"batch", c.batch},
                  {"context", c.context},   {"threads", c.threads},
                  {"pinned", r.pinned},     {"kernel", r.kernel},
                  {"kv_dtype", "f16"},      {"block_tokens", c.block_tokens},
                  {"layers", r.layers},     {"pass_bytes", r.pass_bytes},
                  {"pages", r.pages},       {"passes", c.passes}};
  json["unit"] = "GB/s of K and V";
  spread(r.attend, json);
  json["limit"] = {{"what", "read bandwidth: " + r.read_method}, {"unit", "GB/s"}};
  spread(r.read, json["limit"]);
  json["ratio"] = Median(r.attend) / Median(r.read);
  return json.dump();
}

}  // namespace fastdecode::bench
