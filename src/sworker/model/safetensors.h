// A safetensors file, mapped into memory: one tensor after the other, described by a
// JSON header (https://github.com/huggingface/safetensors, "Format"). Nothing in the
// header is believed before it is checked against the file's size.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"

namespace fastdecode {

// One tensor of a file. `bytes` points into the mapping, at any alignment.
struct TensorView {
  std::string dtype;  // as the format names it: "F32", "F16", "BF16", "I64", ...
  std::vector<int64_t> shape;
  std::span<const std::byte> bytes;  // little-endian, row-major
};

std::string ShapeToString(std::span<const int64_t> shape);  // "[2048, 128]"

// Immutable after Open; any thread. The mapping lives as long as the object.
class SafetensorsFile {
 public:
  // kNotFound, or kDataLoss with the file's name and what is wrong with it.
  static Result<std::unique_ptr<SafetensorsFile>> Open(const std::string& path);
  ~SafetensorsFile();
  SafetensorsFile(const SafetensorsFile&) = delete;
  SafetensorsFile& operator=(const SafetensorsFile&) = delete;

  const std::string& path() const { return path_; }
  const std::map<std::string, TensorView, std::less<>>& tensors() const { return tensors_; }

 private:
  SafetensorsFile(std::string path, std::span<const std::byte> mapping);
  Status Parse();

  std::string path_;
  std::span<const std::byte> mapping_;
  std::map<std::string, TensorView, std::less<>> tensors_;
};

}  // namespace fastdecode
