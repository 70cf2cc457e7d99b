// In place of measure_command.cc where the S-worker, and so libtorch, is not built.
#include "plan/measure/measure_command.h"

namespace fastdecode::plan {

Status RunMeasure(const MeasureCommand&, const std::atomic<int>&) {
  return Status(StatusCode::kUnimplemented,
                "this build has no S-worker, whose parts are measured: build with FASTDECODE_SWORKER=ON");
}

}  // namespace fastdecode::plan
