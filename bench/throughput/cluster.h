// A deployment that the benchmark brings up for itself, by way of the launch script.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>

#include "common/base/status.h"

namespace fastdecode {

class Cluster {
 public:
  // Brings up `config` with the programs beside this one. `load_control` overrides the
  // config's: then an effective copy in a temporary folder is what comes up. kUnavailable: it did
  // not, and the launch script has said why on standard error.
  static Result<std::unique_ptr<Cluster>> Up(const std::string& config, std::optional<bool> load_control,
                                             const std::atomic<int>& stop);
  ~Cluster();  // Takes it down and removes the copy.

  const std::string& address() const { return address_; }
  const std::string& secret_file() const { return secret_file_; }

 private:
  Cluster() = default;
  Status WriteCopy(bool load_control);

  std::string script_;
  std::string config_;
  std::string folder_;  // of the copy; empty: none
  std::string address_;
  std::string secret_file_;
};

}  // namespace fastdecode
