// The CPU as a device: streams are threads, and a pool splits weight rows.
#include <ATen/Version.h>
#include <ATen/core/ivalue.h>
#include <ATen/cpu/Utils.h>

#include <utility>
#include <vector>

#include "common/base/huge_pages.h"
#include "common/base/logging.h"
#include "sworker/device/compute_pool.h"
#include "sworker/device/cpu_stream.h"
#include "sworker/device/device_runtime.h"
#include "sworker/device/torch_setup.h"

namespace fastdecode {
namespace {

std::vector<int> CpusToPin(int threads) {
  std::vector<int> cpus = AllowedCpus();
  if (cpus.size() < static_cast<size_t>(threads)) {
    LOG(WARNING) << threads << " compute threads, but this process may use only " << cpus.size()
                 << " CPUs: nothing is pinned and nothing spins; lower sworker.threads for speed";
    return {};
  }
  cpus.resize(static_cast<size_t>(threads));
  return cpus;
}

bool HasCapability(const std::string& name) {
  const auto capabilities = at::cpu::get_cpu_capabilities();
  const auto found = capabilities.find(name);
  return found != capabilities.end() && found->second.isBool() && found->second.toBool();
}

class CpuRuntime final : public DeviceRuntime {
 public:
  CpuRuntime(int threads, bool pin) : pool_(threads, pin ? CpusToPin(threads) : std::vector<int>()) {}

  at::Device device() const override { return at::Device(at::kCPU); }

  std::string description() const override {
    std::string text = "cpu, " + std::to_string(pool_.size()) + (pool_.size() == 1 ? " thread" : " threads");
    if (pool_.pinned()) text += " pinned from CPU " + std::to_string(pool_.cpu_of(0));
    return text + ", " + at::get_cpu_capability() + (HasCapability("amx_bf16") ? ", AMX bf16" : "");
  }

  std::shared_ptr<std::byte[]> AllocatePinned(size_t bytes) override { return MapPrivateMemory(bytes, true); }

  std::unique_ptr<DeviceStream> MakeStream() override { return std::make_unique<CpuStream>(pool_.cpu_of(0)); }

  int num_shards() const override { return pool_.size(); }
  void ParallelShards(const std::function<void(int shard)>& work) override { pool_.Run(work); }

 private:
  ComputePool pool_;
};

}  // namespace

std::unique_ptr<DeviceRuntime> MakeCpuRuntime(int threads, bool pin) {
  InitTorch();
  return std::make_unique<CpuRuntime>(threads, pin);
}

}  // namespace fastdecode
