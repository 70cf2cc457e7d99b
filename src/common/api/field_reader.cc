#include "common/api/field_reader.h"

#include <algorithm>
#include <cmath>

#include "common/config/json_reader.h"

namespace fastdecode {
namespace {

using nlohmann::json;

std::string Describe(const json& value) {
  if (value.is_array()) return "a list of " + std::to_string(value.size());
  if (value.is_object()) return "a map";
  if (value.is_number_float() && !std::isfinite(value.get<double>())) return "a number that is not finite";
  const std::string text = value.dump(-1, ' ', true, json::error_handler_t::replace);
  return std::string(value.type_name()) + " " + Printable(text);
}

// The integer if `value` is one in [low, high].
std::optional<int64_t> AsInt(const json& value, int64_t low, int64_t high) {
  if (!value.is_number_integer()) return std::nullopt;
  if (value.is_number_unsigned() &&
      value.get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
    return std::nullopt;
  }
  const int64_t number = value.get<int64_t>();
  if (number < low || number > high) return std::nullopt;
  return number;
}

// msgpack's positive integers may come signed or unsigned.
std::optional<uint64_t> AsUnsigned(const json& value) {
  if (value.is_number_unsigned()) return value.get<uint64_t>();
  if (value.is_number_integer() && value.get<int64_t>() >= 0) return static_cast<uint64_t>(value.get<int64_t>());
  return std::nullopt;
}

std::string Range(int64_t low, int64_t high) {
  return "an integer from " + std::to_string(low) + " to " + std::to_string(high);
}

}  // namespace

std::string Printable(std::string_view text) {
  constexpr size_t kMaxBytes = 60;
  std::string out;
  for (const char c : text.substr(0, kMaxBytes)) {
    const auto byte = static_cast<unsigned char>(c);
    out.push_back(byte < 0x20 || byte >= 0x7f ? '?' : c);
  }
  if (text.size() > kMaxBytes) out += "...";
  return out;
}

FieldReader::FieldReader(const json& map, std::string what) : map_(map), what_(std::move(what)) { Known("type"); }

const json* FieldReader::Find(std::string_view name, Need need) {
  Known(name);
  const auto found = map_.find(name);
  if (found != map_.end()) return &*found;
  if (need == Need::kRequired && fault_.empty()) fault_ = what_ + ": field '" + std::string(name) + "' is missing";
  return nullptr;
}

void FieldReader::Fault(std::string_view name, const std::string& expected, const json& found) {
  if (fault_.empty()) {
    fault_ = what_ + ": " + std::string(name) + " must be " + expected + ", found " + Describe(found);
  }
}

void FieldReader::Int(std::string_view name, int64_t low, int64_t high, int64_t* out, Need need) {
  const json* value = Find(name, need);
  if (value == nullptr) return;
  const std::optional<int64_t> number = AsInt(*value, low, high);
  if (!number) return Fault(name, Range(low, high), *value);
  *out = *number;
}

void FieldReader::Int(std::string_view name, int64_t low, int64_t high, int* out, Need need) {
  int64_t number = *out;
  Int(name, low, std::min<int64_t>(high, std::numeric_limits<int>::max()), &number, need);
  *out = static_cast<int>(number);
}

void FieldReader::Unsigned(std::string_view name, uint64_t high, uint64_t* out, Need need) {
  const json* value = Find(name, need);
  if (value == nullptr) return;
  const std::optional<uint64_t> number = AsUnsigned(*value);
  if (!number || *number > high) return Fault(name, "an integer from 0 to " + std::to_string(high), *value);
  *out = *number;
}

void FieldReader::Number(std::string_view name, double* out) {
  const json* value = Find(name, Need::kOptional);
  if (value == nullptr) return;
  if (!value->is_number() || !std::isfinite(value->get<double>())) return Fault(name, "a finite number", *value);
  *out = value->get<double>();
}

void FieldReader::Bool(std::string_view name, bool* out) {
  const json* value = Find(name, Need::kOptional);
  if (value == nullptr) return;
  if (!value->is_boolean()) return Fault(name, "true or false", *value);
  *out = value->get<bool>();
}

void FieldReader::Text(std::string_view name, size_t max_bytes, std::string* out, Need need) {
  const json* value = Find(name, need);
  if (value == nullptr) return;
  if (!value->is_string() || value->get_ref<const std::string&>().size() > max_bytes) {
    return Fault(name, "a string of at most " + std::to_string(max_bytes) + " bytes", *value);
  }
  *out = value->get<std::string>();
}

const json* FieldReader::FindList(std::string_view name, size_t max_count, Need need) {
  const json* value = Find(name, need);
  if (value == nullptr) return nullptr;
  if (value->is_array() && value->size() <= max_count) return value;
  Fault(name, "a list of at most " + std::to_string(max_count) + " values", *value);
  return nullptr;
}

void FieldReader::List(std::string_view name, int64_t low, int64_t high, size_t max_count, std::vector<int32_t>* out,
                       Need need) {
  const json* list = FindList(name, max_count, need);
  if (list == nullptr) return;
  out->clear();
  out->reserve(list->size());
  for (const json& item : *list) {
    const std::optional<int64_t> number = AsInt(item, low, high);
    if (!number) return Fault(std::string(name) + "[" + std::to_string(out->size()) + "]", Range(low, high), item);
    out->push_back(static_cast<int32_t>(*number));
  }
}

void FieldReader::List(std::string_view name, size_t max_count, std::vector<int64_t>* out) {
  const json* list = FindList(name, max_count, Need::kOptional);
  if (list == nullptr) return;
  out->clear();
  for (const json& item : *list) {
    const auto number = AsInt(item, std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max());
    if (!number) return Fault(name, "a list of integers", item);
    out->push_back(*number);
  }
}

void FieldReader::List(std::string_view name, size_t max_count, std::vector<uint64_t>* out) {
  const json* list = FindList(name, max_count, Need::kRequired);
  if (list == nullptr) return;
  out->clear();
  for (const json& item : *list) {
    const std::optional<uint64_t> number = AsUnsigned(item);
    if (!number) return Fault(name, "a list of integers from 0", item);
    out->push_back(*number);
  }
}

void FieldReader::List(std::string_view name, size_t max_count, std::vector<std::optional<float>>* out) {
  const json* list = FindList(name, max_count, Need::kOptional);
  if (list == nullptr) return;
  out->clear();
  for (const json& item : *list) {
    if (!item.is_number() && !item.is_null()) return Fault(name, "a list of numbers", item);
    out->push_back(item.is_null() ? std::nullopt : std::optional<float>(item.get<float>()));
  }
}

Status FieldReader::Finish() {
  if (!fault_.empty()) return InvalidArgument(fault_);
  for (const auto& [name, value] : map_.items()) {
    if (std::find(known_.begin(), known_.end(), name) != known_.end()) continue;
    return InvalidArgument(what_ + ": unknown field '" + Printable(name) + "'; the nearest known one is '" +
                           Nearest(std::string_view(name).substr(0, 60), known_) + "'");
  }
  return OkStatus();
}

}  // namespace fastdecode
