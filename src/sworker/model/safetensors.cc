#include "sworker/model/safetensors.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "common/base/fd.h"

namespace fastdecode {
namespace {

using Json = nlohmann::json;

constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // the reference implementation's limit
constexpr size_t kMaxDims = 8;
constexpr const char* kMetadataKey = "__metadata__";

// Bytes of an element; 0 for a name that the format does not have.
uint64_t ElementBytes(std::string_view dtype) {
  static constexpr std::array<std::pair<std::string_view, uint64_t>, 16> kBytes = {{{"F32", 4},
                                                                                    {"F16", 2},
                                                                                    {"BF16", 2},
                                                                                    {"F64", 8},
                                                                                    {"I64", 8},
                                                                                    {"I32", 4},
                                                                                    {"I16", 2},
                                                                                    {"I8", 1},
                                                                                    {"U64", 8},
                                                                                    {"U32", 4},
                                                                                    {"U16", 2},
                                                                                    {"U8", 1},
                                                                                    {"BOOL", 1},
                                                                                    {"F8_E4M3", 1},
                                                                                    {"F8_E5M2", 1},
                                                                                    {"C64", 8}}};
  const auto* found = std::find_if(kBytes.begin(), kBytes.end(), [&](const auto& e) { return e.first == dtype; });
  return found == kBytes.end() ? 0 : found->second;
}

// Refuses a key that comes twice in one object; nlohmann's parser would keep the last.
class DuplicateKeys {
 public:
  bool operator()(int /*depth*/, Json::parse_event_t event, Json& value) {
    if (event == Json::parse_event_t::object_start) seen_.emplace_back();
    if (event == Json::parse_event_t::object_end) seen_.pop_back();
    if (event == Json::parse_event_t::key && !seen_.back().insert(value.get<std::string>()).second) {
      duplicate_ = value.get<std::string>();
    }
    return true;
  }
  const std::string& duplicate() const { return duplicate_; }

 private:
  std::vector<std::set<std::string>> seen_;
  std::string duplicate_;
};

bool ReadUnsigned(const Json& value, uint64_t limit, uint64_t& out) {
  if (!value.is_number_unsigned()) return false;
  out = value.get<uint64_t>();
  return out <= limit;
}

// One entry of the header, against a data section of data_bytes. Returns what is wrong
// with it, or nothing.
std::string ReadEntry(const Json& entry, std::span<const std::byte> data, TensorView& tensor, uint64_t& begin) {
  if (!entry.is_object() || !entry.contains("dtype") || !entry.contains("shape") || !entry.contains("data_offsets")) {
    return "its entry needs dtype, shape and data_offsets";
  }
  const Json& dtype = entry["dtype"];
  const Json& shape = entry["shape"];
  const Json& offsets = entry["data_offsets"];
  if (!dtype.is_string() || ElementBytes(dtype.get_ref<const std::string&>()) == 0)
    return "unknown dtype " + dtype.dump();
  tensor.dtype = dtype.get<std::string>();
  if (!shape.is_array() || shape.size() > kMaxDims) return "its shape is no list of at most 8 sizes";
  uint64_t end = 0;
  if (!offsets.is_array() || offsets.size() != 2 || !ReadUnsigned(offsets[0], data.size(), begin) ||
      !ReadUnsigned(offsets[1], data.size(), end) || begin > end) {
    return "data_offsets " + offsets.dump().substr(0, 80) + " lie outside the file's " + std::to_string(data.size()) +
           " bytes of data (is the file cut short?)";
  }
  // Every size is at most the file's bytes, so that the product cannot overflow.
  unsigned __int128 bytes = ElementBytes(tensor.dtype);
  for (const Json& size : shape) {
    uint64_t value = 0;
    if (!ReadUnsigned(size, uint64_t{1} << 48, value)) return "impossible shape " + shape.dump().substr(0, 80);
    bytes *= value;
    if (bytes > (uint64_t{1} << 62)) return "impossible shape " + shape.dump().substr(0, 80);
    tensor.shape.push_back(static_cast<int64_t>(value));
  }
  if (bytes != end - begin) {
    return "its shape " + ShapeToString(tensor.shape) + " of " + tensor.dtype + " needs " +
           std::to_string(static_cast<uint64_t>(bytes)) + " bytes, but its data_offsets span " +
           std::to_string(end - begin);
  }
  tensor.bytes = data.subspan(begin, end - begin);
  return {};
}

}  // namespace

std::string ShapeToString(std::span<const int64_t> shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += (i ? ", " : "") + std::to_string(shape[i]);
  return text + "]";
}

SafetensorsFile::SafetensorsFile(std::string path, std::span<const std::byte> mapping)
    : path_(std::move(path)), mapping_(mapping) {}

SafetensorsFile::~SafetensorsFile() {
  if (!mapping_.empty()) munmap(const_cast<std::byte*>(mapping_.data()), mapping_.size());
}

Result<std::unique_ptr<SafetensorsFile>> SafetensorsFile::Open(const std::string& path) {
  Fd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) return NotFound(path + ": " + std::strerror(errno));
  struct stat info {};
  if (fstat(fd.get(), &info) != 0) return NotFound(path + ": " + std::strerror(errno));
  if (!S_ISREG(info.st_mode)) return DataLoss(path + ": not a regular file");
  const auto size = static_cast<size_t>(info.st_size);
  if (size < 8) return DataLoss(path + ": " + std::to_string(size) + " bytes are too few for a safetensors file");
  void* memory = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd.get(), 0);
  if (memory == MAP_FAILED) {
    return Status(StatusCode::kResourceExhausted,
                  path + ": cannot map " + std::to_string(size) + " bytes: " + std::strerror(errno));
  }
  std::unique_ptr<SafetensorsFile> file(new SafetensorsFile(path, {static_cast<const std::byte*>(memory), size}));
  FD_RETURN_IF_ERROR(file->Parse());
  return file;
}

Status SafetensorsFile::Parse() {
  uint64_t header_bytes = 0;  // little-endian, as this machine is
  std::memcpy(&header_bytes, mapping_.data(), sizeof(header_bytes));
  const uint64_t rest = mapping_.size() - sizeof(header_bytes);
  if (header_bytes > kMaxHeaderBytes || header_bytes > rest) {
    return DataLoss(path_ + ": says that its header has " + std::to_string(header_bytes) + " bytes, but " +
                    std::to_string(rest) + " follow and at most " + std::to_string(kMaxHeaderBytes) +
                    " are allowed: cut short, or no safetensors file");
  }
  const auto* text = reinterpret_cast<const char*>(mapping_.data() + sizeof(header_bytes));
  DuplicateKeys keys;
  const Json header = Json::parse(text, text + header_bytes, std::ref(keys), /*allow_exceptions=*/false);
  if (!header.is_object()) return DataLoss(path_ + ": its header is no JSON object");
  if (!keys.duplicate().empty()) return DataLoss(path_ + ": its header has \"" + keys.duplicate() + "\" twice");

  const std::span<const std::byte> data = mapping_.subspan(sizeof(header_bytes) + header_bytes);
  std::vector<std::pair<std::pair<uint64_t, uint64_t>, std::string>> extents;  // (begin, end), name
  for (const auto& [name, entry] : header.items()) {
    if (name == kMetadataKey) continue;
    TensorView tensor;
    uint64_t begin = 0;
    const std::string wrong = ReadEntry(entry, data, tensor, begin);
    if (!wrong.empty()) return DataLoss(path_ + ": tensor " + name + ": " + wrong);
    extents.push_back({{begin, begin + tensor.bytes.size()}, name});
    tensors_.emplace(name, std::move(tensor));
  }
  // The tensors lie one after the other, without a hole, and fill the file.
  std::sort(extents.begin(), extents.end());
  uint64_t expected = 0;
  for (const auto& [extent, name] : extents) {
    if (extent.first != expected) {
      return DataLoss(path_ + ": tensor " + name + ": its data begin at " + std::to_string(extent.first) +
                      ", expected " + std::to_string(expected) +
                      (extent.first < expected ? ": it overlaps another" : ": there is a hole"));
    }
    expected = extent.second;
  }
  if (expected != data.size()) {
    return DataLoss(path_ + ": its tensors end at " + std::to_string(expected) + " of " + std::to_string(data.size()) +
                    " bytes of data");
  }
  return {};
}

}  // namespace fastdecode
