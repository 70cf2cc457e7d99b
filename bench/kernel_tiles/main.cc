// bench_kernel_tiles: what a kernel's arithmetic takes where memory costs nothing, scores, softmax and
// values apart.
//
// Unit: nanoseconds a tile of 32 tokens of one KV head; GB/s of K and V (10^9 bytes) of the three together. The
// tiles of one sequence and head fit into the second-level cache and are walked over again and again. Limit to
// compare with: the memory's read bandwidth of one thread, which bench_decode_attention measures. What is
// below it bounds the attention. The best of many short runs, so that what else the machine does hardly shows.
//
// For f16 and bf16 without AMX also what the vector units would take if they did nothing but multiply and convert, at
// the rate at which they begin multiplications (fma_rate.h): no arrangement of these instructions is faster.
#include <gflags/gflags.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "bench/kernel_tiles/fma_rate.h"
#include "common/base/logging.h"
#include "common/flags/parse_flags.h"
#include "kernels/attention_kernel.h"
#include "kernels/dispatch.h"
#include "kernels/kv_format.h"

DEFINE_string(kernels, "", "attention kernels, separated by commas; empty: all that run here but the reference");
DEFINE_string(kv_dtype, "f16,bf16,int8,int4", "formats of K and V, separated by commas");
DEFINE_string(vectors, "1,2,4,8,16,71", "query vectors of the KV head, separated by commas");
DEFINE_int32(head_dim, 128, "elements of a head, a multiple of 8 up to 256");
DEFINE_int32(tiles, 16, "tiles of 32 tokens that are walked over");
DEFINE_int32(runs, 200, "runs of which the best counts");

namespace fastdecode::kernels {
namespace {

std::vector<std::string> Items(const std::string& list) {
  std::vector<std::string> items;
  std::istringstream stream(list);
  for (std::string item; std::getline(stream, item, ',');) items.push_back(item);
  return items;
}

template <typename T>
class Aligned {
 public:
  explicit Aligned(int64_t count)
      : bytes_((static_cast<size_t>(count) * sizeof(T) + 63) / 64 * 64),
        at_(static_cast<T*>(std::aligned_alloc(64, bytes_)), &std::free) {
    std::memset(at_.get(), 0, bytes_);
  }
  T* get() const { return at_.get(); }

 private:
  size_t bytes_;
  std::unique_ptr<T, void (*)(void*)> at_;
};

class Tiles {
 public:
  Tiles(const AttentionKernel& kernel, KvFormat format, int32_t vectors)
      : kernel_(kernel),
        codec_(CodecOf(kernel, format, format)),
        vectors_(vectors),
        key_bytes_(codec_.keys.tile_bytes(FLAGS_head_dim)),
        bytes_(key_bytes_ + codec_.values.tile_bytes(FLAGS_head_dim)),
        memory_(bytes_ * FLAGS_tiles),
        packed_(codec_.keys.packed_floats(vectors, FLAGS_head_dim)),
        scores_(int64_t{vectors} * kTileTokens),
        acc_(int64_t{vectors} * PaddedDim(FLAGS_head_dim)),
        sums_(int64_t{vectors} * kSumLanes),
        max_(static_cast<size_t>(vectors), kLowest) {
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    std::vector<float> row(static_cast<size_t>(FLAGS_head_dim));
    for (int32_t t = 0; t < FLAGS_tiles * kTileTokens; ++t) {
      std::byte* const tile = Tile(t / kTileTokens);
      for (const auto& [store, to] : {std::pair{codec_.keys.store, tile}, {codec_.values.store, tile + key_bytes_}}) {
        std::generate(row.begin(), row.end(), [&] { return normal(random); });
        store(row.data(), FLAGS_head_dim, t % kTileTokens, to);
      }
    }
    const std::vector<uint16_t> query(static_cast<size_t>(vectors * FLAGS_head_dim), 0x3000);  // 0.125
    codec_.keys.load_query(
        {query.data(), int64_t{vectors} * FLAGS_head_dim, 1, vectors, FLAGS_head_dim, 0.1f, packed_.get()});
  }

  int64_t bytes() const { return bytes_; }

  // Nanoseconds a tile of what is asked for.
  double Time(bool scores, bool softmax, bool values) {
    double best = 1e30;
    if (kernel_.enter != nullptr) kernel_.enter(vectors_);
    for (int run = 0; run < FLAGS_runs; ++run) {
      const auto begin = std::chrono::steady_clock::now();
      for (int32_t t = 0; t < FLAGS_tiles; ++t) {
        std::byte* const tile = Tile(t);
        const Ahead ahead{tile, bytes_, tile, 0};
        if (scores) {
          codec_.keys.scores({packed_.get(), vectors_, FLAGS_head_dim, tile, scores_.get(), ahead});
        }
        if (softmax) {
          kernel_.softmax(
              {scores_.get(), vectors_, ~0u, 0, max_.data(), sums_.get(), acc_.get(), PaddedDim(FLAGS_head_dim)});
        }
        if (values) {
          codec_.values.add(
              {scores_.get(), vectors_, FLAGS_head_dim, kTileTokens, tile + key_bytes_, acc_.get(), ahead});
        }
      }
      const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - begin;
      best = std::min(best, took.count() / FLAGS_tiles);
    }
    if (kernel_.leave != nullptr) kernel_.leave(vectors_);
    return best;
  }

 private:
  std::byte* Tile(int32_t t) { return memory_.get() + t * bytes_; }

  const AttentionKernel& kernel_;
  KvCodec codec_;
  int32_t vectors_;
  int64_t key_bytes_;
  int64_t bytes_;
  Aligned<std::byte> memory_;
  Aligned<float> packed_;
  Aligned<float> scores_;
  Aligned<float> acc_;
  Aligned<float> sums_;
  std::vector<float> max_;
};

// GB/s at which multiplications and conversions alone fill the two ports that do either; 0: not known. A line of 64
// bytes holds 32 elements; converting a vector of f16 takes one port a turn with 8 lanes, both with 16.
double PortLimit(std::string_view kernel, KvFormat format, int vectors) {
  const int lanes = kernel == "avx512" ? 16 : kernel == "avx2" ? 8 : 0;
  if (lanes == 0 || format >= KvFormat::kInt8) return 0;
  const int converts = format == KvFormat::kF16 && lanes == 16 ? 2 : 1;
  const double turns = double{32} / lanes * (vectors + converts);
  return 64 * bench::FmaRate(lanes) / turns / 1e9;
}

double Rounded(double x) { return std::round(x * 10) / 10; }

int Run() {
  if (FLAGS_head_dim < 8 || FLAGS_head_dim > kMaxHeadDim || FLAGS_head_dim % 8 != 0 || FLAGS_tiles < 1 ||
      FLAGS_tiles > 4096 || FLAGS_runs < 1) {
    std::fprintf(stderr,
                 "bench_kernel_tiles: --head_dim is a multiple of 8 up to %d, --tiles 1 .. 4096, --runs at "
                 "least 1\n",
                 kMaxHeadDim);
    return 2;
  }
  const uint32_t features = DetectCpuFeatures();
  std::vector<std::string> names = Items(FLAGS_kernels);
  if (names.empty()) {
    for (const AttentionKernel* kernel : AttentionKernels()) {
      if (kernel->features != kNoFeatures && (kernel->features & ~features) == 0) names.emplace_back(kernel->name);
    }
  }
  for (const std::string& name : names) {
    const KernelChoice choice = ChooseAttentionKernel(name, features);
    if (choice.kernel == nullptr) {
      std::fprintf(stderr, "bench_kernel_tiles: %s\n", choice.error.c_str());
      return 2;
    }
    for (const std::string& format_name : Items(FLAGS_kv_dtype)) {
      const auto* const format = std::find(std::begin(kKvFormatNames), std::end(kKvFormatNames), format_name);
      if (format == std::end(kKvFormatNames)) {
        std::fprintf(stderr, "bench_kernel_tiles: no format %s; there are f16, bf16, int8, int4\n",
                     format_name.c_str());
        return 2;
      }
      for (const std::string& text : Items(FLAGS_vectors)) {
        const int vectors = std::atoi(text.c_str());
        if (vectors < 1 || vectors > 1024) {
          std::fprintf(stderr, "bench_kernel_tiles: --vectors are numbers from 1 to 1024, not '%s'\n", text.c_str());
          return 2;
        }
        const auto kv_format = static_cast<KvFormat>(format - std::begin(kKvFormatNames));
        Tiles tiles(*choice.kernel, kv_format, vectors);
        const double all = tiles.Time(true, true, true);
        const double scores = tiles.Time(true, false, false);
        const double both = tiles.Time(true, true, false);
        const double values = tiles.Time(false, false, true);
        nlohmann::ordered_json line{{"kernel", choice.kernel->name},
                                    {"kv_dtype", format_name},
                                    {"vectors", vectors},
                                    {"head_dim", FLAGS_head_dim},
                                    {"scores_ns", Rounded(scores)},
                                    {"softmax_ns", Rounded(std::max(0.0, both - scores))},
                                    {"values_ns", Rounded(values)},
                                    {"all_ns", Rounded(all)},
                                    {"gb_per_s", Rounded(static_cast<double>(tiles.bytes()) / all)}};
        if (const double limit = PortLimit(choice.kernel->name, kv_format, vectors); limit > 0) {
          line["port_limit_gb_per_s"] = Rounded(limit);
        }
        std::printf("%s\n", line.dump().c_str());
        std::fflush(stdout);
      }
    }
  }
  return 0;
}

}  // namespace
}  // namespace fastdecode::kernels

int main(int argc, char** argv) {
  const fastdecode::ProgramText text{"bench_kernel_tiles",
                                     "Times the arithmetic of attention kernels on tiles in the cache; prints a JSON "
                                     "object a line.\nExit status: 0 done, 2 usage."};
  if (const std::optional<int> status = fastdecode::ParseFlags(text, &argc, &argv)) return *status;
  fastdecode::InitLogging(argv[0]);
  return fastdecode::kernels::Run();
}
