// Reads a map from a peer field by field: types, ranges and counts are checked, and
// a field that nobody asked for is an error that names the nearest known one.
#pragma once

#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"

namespace fastdecode {

// What a peer wrote, fit for a log line: control characters and broken UTF-8 replaced, cut after 60 bytes.
std::string Printable(std::string_view text);

// One use: a call a known field, then Finish(). An absent field leaves `out` as it is.
class FieldReader {
 public:
  enum class Need { kOptional, kRequired };

  // `map` outlives the reader; `what` names the message in errors.
  FieldReader(const nlohmann::json& map, std::string what);

  void Known(std::string_view name) { known_.emplace_back(name); }  // Allowed, read elsewhere.
  void Int(std::string_view name, int64_t low, int64_t high, int64_t* out, Need need = Need::kOptional);
  void Int(std::string_view name, int64_t low, int64_t high, int* out, Need need = Need::kOptional);
  void Unsigned(std::string_view name, uint64_t high, uint64_t* out, Need need = Need::kOptional);
  void Number(std::string_view name, double* out);
  void Bool(std::string_view name, bool* out);
  void Text(std::string_view name, size_t max_bytes, std::string* out, Need need = Need::kOptional);
  void List(std::string_view name, int64_t low, int64_t high, size_t max_count, std::vector<int32_t>* out,
            Need need = Need::kOptional);
  void List(std::string_view name, size_t max_count, std::vector<int64_t>* out);
  void List(std::string_view name, size_t max_count, std::vector<uint64_t>* out);
  // null is a missing value.
  void List(std::string_view name, size_t max_count, std::vector<std::optional<float>>* out);

  // The first fault, or the first unknown field.
  Status Finish();

 private:
  const nlohmann::json* Find(std::string_view name, Need need);
  const nlohmann::json* FindList(std::string_view name, size_t max_count, Need need);
  void Fault(std::string_view name, const std::string& expected, const nlohmann::json& found);

  const nlohmann::json& map_;
  std::string what_;
  std::vector<std::string> known_;
  std::string fault_;
};

}  // namespace fastdecode
