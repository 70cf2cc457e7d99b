// Writes safetensors files, right ones and wrong ones.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace fastdecode::testing {

// A folder that goes with the object.
class ScratchFolder {
 public:
  ScratchFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "fastdecode_model_XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) ADD_FAILURE() << "no temporary folder";
    path_ = name;
  }
  ~ScratchFolder() { std::filesystem::remove_all(path_); }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;

  const std::string& path() const { return path_; }
  std::string Write(const std::string& name, const std::string& bytes) const {
    const std::string file = path_ + "/" + name;
    std::ofstream(file, std::ios::binary) << bytes;
    return file;
  }

 private:
  std::string path_;
};

// The 8 bytes before the header, the header, the data.
inline std::string Assemble(const std::string& header, const std::string& data) {
  const uint64_t size = header.size();
  std::string file(sizeof(size), '\0');
  std::memcpy(file.data(), &size, sizeof(size));
  return file + header + data;
}

struct TensorToWrite {
  std::string name;
  std::string dtype;
  std::vector<int64_t> shape;
  std::string bytes;
};

inline nlohmann::json HeaderOf(const std::vector<TensorToWrite>& tensors) {
  nlohmann::json header = {{"__metadata__", {{"format", "pt"}}}};
  size_t begin = 0;
  for (const TensorToWrite& t : tensors) {
    header[t.name] = {{"dtype", t.dtype}, {"shape", t.shape}, {"data_offsets", {begin, begin + t.bytes.size()}}};
    begin += t.bytes.size();
  }
  return header;
}

inline std::string FileOf(const std::vector<TensorToWrite>& tensors) {
  std::string data;
  for (const TensorToWrite& t : tensors) data += t.bytes;
  return Assemble(HeaderOf(tensors).dump(), data);
}

inline std::string ReadFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

}  // namespace fastdecode::testing
