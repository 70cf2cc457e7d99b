// The tensors of a Hugging Face model folder: model.safetensors, or the shards that
// model.safetensors.index.json names.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "sworker/model/safetensors.h"

namespace fastdecode {

// One thread. What Find returns lives as long as the checkpoint.
class Checkpoint {
 public:
  // kNotFound or kDataLoss, naming the file.
  static Result<std::unique_ptr<Checkpoint>> Open(const std::string& folder);

  // "F32", ...; empty if there is no such tensor.
  std::string DtypeOf(const std::string& name) const;
  // The tensor, of this shape and of F32, F16 or BF16. kNotFound, kDataLoss (another
  // shape), kUnimplemented (another dtype), each naming file and tensor.
  Result<const TensorView*> Find(const std::string& name, std::span<const int64_t> shape);

  int64_t total_bytes() const { return total_bytes_; }
  // What no Find has asked for, in alphabetical order.
  std::vector<std::string> Unused() const;

 private:
  struct Located {
    const SafetensorsFile* file = nullptr;
    const TensorView* view = nullptr;
  };

  Status OpenShards(const std::string& folder, const std::string& index_path);
  Status Add(std::unique_ptr<SafetensorsFile> file);

  std::string origin_;  // the file to name when a tensor is missing
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::map<std::string, Located> tensors_;
  std::set<std::string> used_;
  int64_t total_bytes_ = 0;
};

}  // namespace fastdecode
