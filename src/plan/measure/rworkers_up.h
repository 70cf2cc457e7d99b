// The R-workers of a config, brought up for a measurement by way of the launch script,
// which leaves the S-worker's place, and its CPUs, to this program.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "common/base/status.h"

namespace fastdecode::plan {

class RWorkersUp {
 public:
  // kUnavailable: they did not come up, and the launch script has said why on standard error.
  static Result<std::unique_ptr<RWorkersUp>> Start(const std::string& config, const std::atomic<int>& stop);
  ~RWorkersUp();  // Takes them down.

  const std::string& effective_config() const { return effective_config_; }  // with their addresses
  // Binds the calling thread, and threads that it makes from then on, to the S-worker's
  // CPUs, if there are such.
  Status BindToSWorkerCpus() const;

 private:
  RWorkersUp() = default;
  std::string script_, config_, effective_config_, cpus_;
};

}  // namespace fastdecode::plan
