#include "sworker/device/torch_setup.h"

#include <ATen/Parallel.h>
#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>
#include <c10/util/Logging.h>
#include <sys/mman.h>

#include <cstdlib>
#include <mutex>
#include <string>

#include "common/base/logging.h"

namespace fastdecode {
namespace {

class GlogWarnings : public c10::WarningHandler {
 public:
  void process(const c10::Warning& warning) override {
    const c10::SourceLocation& at = warning.source_location();
    google::LogMessage(at.file, static_cast<int>(at.line), google::GLOG_WARNING).stream() << warning.msg();
  }
};

// Large tensors on transparent huge pages, where the host has them: weights are read once a pass,
// and a third slower from small pages. (libtorch's own switch is read before main.)
class HugePageAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    void* memory = nullptr;
    // Where memory is short, libtorch's own error says so.
    if (bytes < kHugePage || posix_memalign(&memory, kHugePage, bytes) != 0) return base_->allocate(bytes);
    (void)madvise(memory, bytes, MADV_HUGEPAGE);
    return {memory, memory, base_->raw_deleter(), c10::DeviceType::CPU};
  }
  c10::DeleterFnPtr raw_deleter() const override { return base_->raw_deleter(); }  // free()
  void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }

 private:
  static constexpr size_t kHugePage = size_t{2} << 20;
  c10::Allocator* const base_ = c10::GetDefaultCPUAllocator();
};

}  // namespace

void InitTorch() {
  static std::once_flag once;  // libtorch refuses a second number of inter-op threads.
  std::call_once(once, [] {
    static auto* const allocator = new HugePageAllocator;  // for whatever outlives main
    c10::SetCPUAllocator(allocator, /*priority=*/1);
    static GlogWarnings warnings;
    c10::WarningUtils::set_warning_handler(&warnings);
    c10::SetStackTraceFetcher([]() -> std::string { return {}; });
    at::set_num_threads(1);
    at::set_num_interop_threads(1);
  });
}

}  // namespace fastdecode
