// Random weights, fast: a hash of (seed, name, index) picks from a table of 65536
// equally likely values of N(0, 0.02), four at a time.
#include <ATen/ops/arange.h>
#include <ATen/ops/special_ndtri.h>

#include <string_view>

#include "sworker/model/weights.h"

namespace fastdecode {
namespace {

constexpr double kDeviation = 0.02;  // Hugging Face's initializer_range for Llama
constexpr int64_t kTableSize = 65536;

uint64_t SplitMix64(uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

uint64_t Fnv1a(std::string_view text) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return hash;
}

// Elements [4 * begin, min(4 * end, count)) of out.
template <typename Bits>
void FillGroups(uint64_t key, const Bits* table, Bits* out, int64_t begin, int64_t end, int64_t count) {
  for (int64_t group = begin; group < end; ++group) {
    const uint64_t random = SplitMix64(key + static_cast<uint64_t>(group));
    const int64_t left = count - 4 * group;
    for (int j = 0; j < 4 && j < left; ++j) out[4 * group + j] = table[(random >> (16 * j)) & 0xffff];
  }
}

class RandomReader final : public WeightReader {
 public:
  RandomReader(uint64_t seed, DeviceRuntime& device) : seed_(seed), device_(device) {
    // The middles of 65536 equally likely slices.
    const at::Tensor slices = at::arange(kTableSize, at::kDouble).add_(0.5).div_(static_cast<double>(kTableSize));
    table_ = at::special_ndtri(slices).mul_(kDeviation);
  }

  bool Has(const std::string&) const override { return true; }

  Status Fill(const std::string& name, const at::Tensor& out) override {
    if (name.ends_with("norm.weight")) {
      out.fill_(1);
      return {};
    }
    const at::Tensor table = table_.to(out.scalar_type());
    const uint64_t key = SplitMix64(seed_ ^ Fnv1a(name));
    const int64_t count = out.numel(), groups = (count + 3) / 4, shards = device_.num_shards();
    device_.ParallelShards([&](int shard) {
      const int64_t begin = groups * shard / shards, end = groups * (shard + 1) / shards;
      if (out.element_size() == 4) {
        FillGroups(key, static_cast<const uint32_t*>(table.const_data_ptr()),
                   static_cast<uint32_t*>(out.mutable_data_ptr()), begin, end, count);
      } else {
        FillGroups(key, static_cast<const uint16_t*>(table.const_data_ptr()),
                   static_cast<uint16_t*>(out.mutable_data_ptr()), begin, end, count);
      }
    });
    return {};
  }

 private:
  const uint64_t seed_;
  DeviceRuntime& device_;
  at::Tensor table_;  // [65536], f64
};

}  // namespace

std::unique_ptr<WeightReader> MakeRandomReader(uint64_t seed, DeviceRuntime& device) {
  return std::make_unique<RandomReader>(seed, device);
}

}  // namespace fastdecode
