#include "attention.h"

#include <sched.h>
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>

namespace fastdecode::peers {
namespace {

constexpr int64_t kTableRows = 8192;  // distinct K and V rows; they repeat

std::vector<float> Normal(int64_t elements, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<size_t>(elements));
  for (float& x : values) x = normal(random);
  return values;
}

ggml_threadpool* PinnedPool(int threads) {
  ggml_threadpool_params params = ggml_threadpool_params_default(threads);
  cpu_set_t allowed;
  sched_getaffinity(0, sizeof(allowed), &allowed);
  if (CPU_COUNT(&allowed) < threads) {
    std::fprintf(stderr, "peer_ggml: %d threads, but this process may use %d CPUs\n", threads, CPU_COUNT(&allowed));
    std::exit(2);
  }
  int left = threads;
  for (int cpu = 0; cpu < std::min(CPU_SETSIZE, GGML_MAX_N_THREADS) && left > 0; ++cpu) {
    if (!CPU_ISSET(cpu, &allowed)) continue;
    params.cpumask[cpu] = true;
    --left;
  }
  params.strict_cpu = true;
  params.poll = 100;  // spin between operations
  return ggml_threadpool_new(&params);
}

ggml_context* Metadata(size_t tensors, size_t graph_nodes) {
  const size_t graph = graph_nodes == 0 ? 0 : ggml_graph_overhead_custom(graph_nodes, false);
  return ggml_init({tensors * ggml_tensor_overhead() + graph, nullptr, /*no_alloc=*/true});
}

}  // namespace

const char* FormName(Form form) {
  switch (form) {
    case Form::kBatch:
      return "one operation for all sequences of a length";
    case Form::kSequence:
      return "one operation a sequence";
    case Form::kRows:
      return "query heads of a KV head as rows";
  }
  return "";
}

Attention::Attention(const Case& c, ggml_type kv_type, int64_t layers)
    : case_(c),
      kv_type_(kv_type),
      q_(Normal(c.sequences() * c.heads * c.head_dim, 3)),
      o_(q_.size()),
      layers_(static_cast<size_t>(layers)) {
  const int64_t row_bytes = static_cast<int64_t>(ggml_row_size(kv_type, c.head_dim));
  const int64_t bytes = layers * 2 * c.context_tokens() * c.kv_heads * row_bytes;
  MapMemory(bytes);
  Fill(bytes);
  tensors_ = Metadata(layers_.size() * 2 * c.groups.size(), 0);
  std::byte* at = memory_;
  const auto add = [&](std::vector<ggml_tensor*>& to, const Group& g) {
    to.push_back(ggml_new_tensor_4d(tensors_, kv_type, c.head_dim, g.context, c.kv_heads, g.sequences));
    to.back()->data = at;
    at += ggml_nbytes(to.back());
  };
  for (Layer& layer : layers_) {
    for (const Group& g : c.groups) {
      add(layer.k, g);
      add(layer.v, g);
    }
  }
  pool_ = PinnedPool(c.threads);
}

Attention::~Attention() {
  ggml_threadpool_free(pool_);
  if (nodes_ != nullptr) ggml_free(nodes_);
  ggml_free(tensors_);
  munmap(memory_, memory_bytes_);
}

// Huge pages where the system gives them: with small ones, misses of the TLB cost a tenth.
void Attention::MapMemory(int64_t bytes) {
  memory_bytes_ = static_cast<size_t>(bytes);
  void* const memory = mmap(nullptr, memory_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    std::fprintf(stderr, "peer_ggml: can't map %lld bytes\n", static_cast<long long>(bytes));
    std::exit(3);
  }
  madvise(memory, memory_bytes_, MADV_HUGEPAGE);
  memory_ = static_cast<std::byte*>(memory);
}

void Attention::Fill(int64_t bytes) {
  const std::vector<float> rows = Normal(kTableRows * case_.head_dim, 1);
  std::vector<std::byte> table(ggml_row_size(kv_type_, case_.head_dim) * kTableRows);
  ggml_quantize_chunk(kv_type_, rows.data(), table.data(), 0, kTableRows, case_.head_dim, nullptr);
  const auto size = static_cast<int64_t>(table.size());
  for (int64_t at = 0; at < bytes; at += size) {
    std::memcpy(memory_ + at, table.data(), static_cast<size_t>(std::min(size, bytes - at)));
  }
}

std::vector<Form> Attention::Forms() const {
  std::vector<Form> forms = {Form::kBatch, Form::kSequence};
  if (case_.heads > case_.kv_heads) forms.push_back(Form::kRows);
  return forms;
}

void Attention::Prepare(Form form, int64_t first, int64_t count) {
  form_ = form;
  if (nodes_ != nullptr) ggml_free(nodes_);
  const size_t operations = static_cast<size_t>(count) *
                            (form == Form::kSequence ? static_cast<size_t>(case_.sequences()) : case_.groups.size());
  const size_t tensors = operations * 4;  // views of Q, K and V, and the output
  nodes_ = Metadata(tensors, tensors);
  graph_ = ggml_new_graph_custom(nodes_, tensors, false);
  for (int64_t i = first; i < first + count; ++i) {
    last_layer_ = static_cast<size_t>(i) % layers_.size();
    int64_t first_sequence = 0;
    for (size_t group = 0; group < case_.groups.size(); ++group) {
      AddGroup(graph_, layers_[last_layer_], group, first_sequence);
      first_sequence += case_.groups[group].sequences;
    }
  }
  plan_ = ggml_graph_plan(graph_, case_.threads, pool_);
  work_.resize(plan_.work_size + 64);
  void* work = work_.data();
  size_t space = work_.size();
  plan_.work_data = static_cast<uint8_t*>(std::align(64, plan_.work_size, work, space));
}

void Attention::AddGroup(ggml_cgraph* graph, const Layer& layer, size_t group, int64_t first_sequence) {
  const int64_t sequences = case_.groups[group].sequences;
  const int64_t step = form_ == Form::kSequence ? 1 : sequences;
  const int64_t heads = form_ == Form::kRows ? case_.kv_heads : case_.heads;
  const int64_t rows = case_.heads / heads;
  for (int64_t s = 0; s < sequences; s += step) {
    const int64_t at = (first_sequence + s) * case_.heads * case_.head_dim;
    ggml_tensor* const q = ggml_new_tensor_4d(nodes_, GGML_TYPE_F32, case_.head_dim, rows, heads, step);
    q->data = q_.data() + at;
    const auto view = [&](ggml_tensor* x) {
      return ggml_view_4d(nodes_, x, x->ne[0], x->ne[1], x->ne[2], step, x->nb[1], x->nb[2], x->nb[3],
                          static_cast<size_t>(s) * x->nb[3]);
    };
    const float scale = 1.0F / std::sqrt(static_cast<float>(case_.head_dim));
    ggml_tensor* const o =
        ggml_flash_attn_ext(nodes_, q, view(layer.k[group]), view(layer.v[group]), nullptr, scale, 0.0F, 0.0F);
    o->data = o_.data() + at;
    ggml_build_forward_expand(graph, o);
  }
}

double Attention::Compute() {
  const auto start = std::chrono::steady_clock::now();
  if (ggml_graph_compute(graph_, &plan_) != GGML_STATUS_SUCCESS) return -1;
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// ggml's output is [sequences, rows, heads, head_dim]: with the heads as rows, the row is a
// head's number within its KV head.
const float* Attention::OutputRow(size_t group, int64_t sequence, int64_t head) const {
  int64_t at = sequence;
  for (size_t before = 0; before < group; ++before) at += case_.groups[before].sequences;
  const int64_t in_group = case_.heads / case_.kv_heads;
  const int64_t row = form_ == Form::kRows ? head % in_group * case_.kv_heads + head / in_group : head;
  return o_.data() + (at * case_.heads + row) * case_.head_dim;
}

std::vector<double> Attention::Expected(size_t group, int64_t sequence, int64_t head) const {
  const Layer& layer = layers_[last_layer_];
  const auto dim = static_cast<size_t>(case_.head_dim);
  int64_t at = sequence;
  for (size_t before = 0; before < group; ++before) at += case_.groups[before].sequences;
  const float* const q = q_.data() + (at * case_.heads + head) * case_.head_dim;
  const int64_t kv_head = head / (case_.heads / case_.kv_heads);
  std::vector<float> row(dim);
  const auto load = [&](const ggml_tensor* x, int64_t token) {
    const auto offset = static_cast<size_t>(token) * x->nb[1] + static_cast<size_t>(kv_head) * x->nb[2] +
                        static_cast<size_t>(sequence) * x->nb[3];
    ggml_get_type_traits(kv_type_)->to_float(static_cast<const std::byte*>(x->data) + offset, row.data(),
                                             case_.head_dim);
  };
  std::vector<double> scores;
  for (int64_t t = 0; t < case_.groups[group].context; ++t) {
    load(layer.k[group], t);
    double dot = 0;
    for (size_t i = 0; i < dim; ++i) dot += double{q[i]} * double{row[i]};
    scores.push_back(dot / std::sqrt(static_cast<double>(dim)));
  }
  const double top = *std::max_element(scores.begin(), scores.end());
  std::vector<double> o(dim);
  double sum = 0;
  for (size_t t = 0; t < scores.size(); ++t) {
    load(layer.v[group], static_cast<int64_t>(t));
    const double weight = std::exp(scores[t] - top);
    sum += weight;
    for (size_t i = 0; i < dim; ++i) o[i] += weight * double{row[i]};
  }
  for (double& x : o) x /= sum;
  return o;
}

double Attention::RelativeError() const {
  double difference = 0;
  double size = 0;
  for (size_t group = 0; group < case_.groups.size(); ++group) {
    for (const int64_t sequence : {int64_t{0}, case_.groups[group].sequences - 1}) {
      for (const int64_t head : {int64_t{0}, case_.heads / 2, case_.heads - 1}) {
        const std::vector<double> expected = Expected(group, sequence, head);
        const float* const got = OutputRow(group, sequence, head);
        for (size_t i = 0; i < expected.size(); ++i) {
          difference += (double{got[i]} - expected[i]) * (double{got[i]} - expected[i]);
          size += expected[i] * expected[i];
        }
      }
    }
  }
  return std::sqrt(difference / size);
}

}  // namespace fastdecode::peers
