#include "sworker/model/checkpoint.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

namespace fastdecode {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr const char* kSingleFile = "model.safetensors";
constexpr const char* kIndexFile = "model.safetensors.index.json";
constexpr uintmax_t kMaxIndexBytes = 100'000'000;

Result<Json> ReadIndex(const std::string& path) {
  std::error_code error;
  const uintmax_t size = fs::file_size(path, error);
  if (error) return NotFound(path + ": " + error.message());
  if (size > kMaxIndexBytes) return DataLoss(path + ": " + std::to_string(size) + " bytes are too many for an index");
  std::ifstream in(path, std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  Json index = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!index.is_object() || !index.contains("weight_map") || !index["weight_map"].is_object()) {
    return DataLoss(path + ": no JSON object with a \"weight_map\"");
  }
  return index;
}

bool IsPlainFileName(const std::string& name) {
  return !name.empty() && name != "." && name != ".." && name.find('/') == std::string::npos &&
         name.find('\0') == std::string::npos;
}

}  // namespace

Result<std::unique_ptr<Checkpoint>> Checkpoint::Open(const std::string& folder) {
  std::error_code ignored;  // a folder that cannot be read has neither file
  auto checkpoint = std::make_unique<Checkpoint>();
  const std::string single = (fs::path(folder) / kSingleFile).string();
  const std::string index = (fs::path(folder) / kIndexFile).string();
  if (fs::exists(single, ignored)) {
    checkpoint->origin_ = single;
    FD_ASSIGN_OR_RETURN(auto file, SafetensorsFile::Open(single));
    FD_RETURN_IF_ERROR(checkpoint->Add(std::move(file)));
  } else if (fs::exists(index, ignored)) {
    FD_RETURN_IF_ERROR(checkpoint->OpenShards(folder, index));
  } else {
    return NotFound(folder + ": has neither " + kSingleFile + " nor " + kIndexFile);
  }
  return checkpoint;
}

Status Checkpoint::Add(std::unique_ptr<SafetensorsFile> file) {
  for (const auto& [name, view] : file->tensors()) {
    const auto [other, inserted] = tensors_.emplace(name, Located{file.get(), &view});
    if (!inserted) {
      return DataLoss(file->path() + ": tensor " + name + ": is in " + other->second.file->path() + " too");
    }
    total_bytes_ += static_cast<int64_t>(view.bytes.size());
  }
  files_.push_back(std::move(file));
  return {};
}

Status Checkpoint::OpenShards(const std::string& folder, const std::string& index_path) {
  origin_ = index_path;
  FD_ASSIGN_OR_RETURN(const Json index, ReadIndex(index_path));
  std::map<std::string, std::vector<std::string>> tensors_of;  // by shard
  for (const auto& [tensor, shard] : index["weight_map"].items()) {
    if (!shard.is_string() || !IsPlainFileName(shard.get_ref<const std::string&>())) {
      return DataLoss(index_path + ": tensor " + tensor + ": expected the name of a file of this folder, found " +
                      shard.dump().substr(0, 80));
    }
    tensors_of[shard.get<std::string>()].push_back(tensor);
  }
  for (const auto& [shard, names] : tensors_of) {
    FD_ASSIGN_OR_RETURN(auto file, SafetensorsFile::Open((fs::path(folder) / shard).string()));
    for (const std::string& name : names) {
      if (!file->tensors().contains(name)) {
        return DataLoss(file->path() + ": tensor " + name + ": missing, though " + kIndexFile + " says it is here");
      }
    }
    FD_RETURN_IF_ERROR(Add(std::move(file)));
  }
  return {};
}

std::string Checkpoint::DtypeOf(const std::string& name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? std::string() : found->second.view->dtype;
}

Result<const TensorView*> Checkpoint::Find(const std::string& name, std::span<const int64_t> shape) {
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) {
    return NotFound(origin_ + ": tensor " + name + ": missing, expected with shape " + ShapeToString(shape));
  }
  const auto& [file, view] = found->second;
  if (!std::equal(shape.begin(), shape.end(), view->shape.begin(), view->shape.end())) {
    return DataLoss(file->path() + ": tensor " + name + ": has shape " + ShapeToString(view->shape) +
                    ", but config.json asks for " + ShapeToString(shape));
  }
  if (view->dtype != "F32" && view->dtype != "F16" && view->dtype != "BF16") {
    return Status(StatusCode::kUnimplemented, file->path() + ": tensor " + name + ": dtype " + view->dtype +
                                                  "; this build reads F32, F16 and BF16");
  }
  used_.insert(name);
  return view;
}

std::vector<std::string> Checkpoint::Unused() const {
  std::vector<std::string> names;
  for (const auto& [name, located] : tensors_) {
    if (!used_.contains(name)) names.push_back(name);
  }
  return names;
}

}  // namespace fastdecode
