#include "sworker/device/torch_setup.h"

#include <ATen/Parallel.h>
#include <c10/util/Exception.h>
#include <c10/util/Logging.h>

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

}  // namespace

void InitTorch() {
  static std::once_flag once;  // libtorch refuses a second number of inter-op threads.
  std::call_once(once, [] {
    static GlogWarnings warnings;
    c10::WarningUtils::set_warning_handler(&warnings);
    c10::SetStackTraceFetcher([]() -> std::string { return {}; });
    at::set_num_threads(1);
    at::set_num_interop_threads(1);
  });
}

}  // namespace fastdecode
