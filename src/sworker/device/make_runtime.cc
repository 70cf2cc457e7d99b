// From a device's name to its runtime; opens the CUDA plugin.
#include <dlfcn.h>

#include <charconv>
#include <string_view>

#include "sworker/device/device_runtime.h"
#include "sworker/device/torch_setup.h"

namespace fastdecode {
namespace {

constexpr const char* kCudaPlugin = "libfastdecode_cuda.so";  // found through the program's RPATH

// "cuda:3" -> 3; negative if it is no such name.
int CudaIndex(std::string_view device) {
  constexpr std::string_view kPrefix = "cuda:";
  if (!device.starts_with(kPrefix)) return -1;
  device.remove_prefix(kPrefix.size());
  int index = -1;
  const auto [end, error] = std::from_chars(device.data(), device.data() + device.size(), index);
  return error == std::errc() && end == device.data() + device.size() && index < 64 ? index : -1;
}

Result<std::unique_ptr<DeviceRuntime>> OpenCuda(const std::string& device, int index) {
  // Never closed: libtorch keeps what the plugin registered.
  void* plugin = dlopen(kCudaPlugin, RTLD_NOW | RTLD_LOCAL);
  if (plugin == nullptr) {
    return Unavailable(device + ": no CUDA plugin in this build (" + dlerror() +
                       "); build with FASTDECODE_CUDA=ON where the CUDA toolkit is, or set sworker.device to \"cpu\"");
  }
  const auto entry = reinterpret_cast<DeviceRuntimeEntry>(dlsym(plugin, kDeviceRuntimeEntry));
  if (entry == nullptr) return Unavailable(device + ": " + kCudaPlugin + " is of another build: install both anew");
  InitTorch();
  std::string error;
  std::unique_ptr<DeviceRuntime> runtime(entry(kDeviceRuntimeAbi, index, &error));
  if (!runtime) return Unavailable(device + ": " + error);
  return runtime;
}

}  // namespace

Result<std::unique_ptr<DeviceRuntime>> MakeDeviceRuntime(const std::string& device, int threads, bool pin) {
  if (device == "cpu") {
    if (threads < 1)
      return InvalidArgument("cpu: " + std::to_string(threads) + " compute threads; at least 1 is needed");
    return MakeCpuRuntime(threads, pin);
  }
  const int index = CudaIndex(device);
  if (index < 0) return InvalidArgument("unknown device \"" + device + "\": expected \"cpu\" or \"cuda:N\"");
  return OpenCuda(device, index);
}

}  // namespace fastdecode
