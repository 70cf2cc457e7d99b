#include "common/config/json_reader.h"

#include <algorithm>
#include <cmath>
#include <sstream>

namespace fastdecode {
namespace {

using nlohmann::json;

std::string Shown(const json& value) {
  std::string text = value.dump(-1, ' ', false, json::error_handler_t::replace);
  if (text.size() > 60) text = text.substr(0, 57) + "...";
  return text;
}

// Edits (insert, delete, replace) that turn a into b.
size_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, replaced});
    }
  }
  return row[b.size()];
}

std::string Quoted(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "\"" : ", \"") + word + "\"";
  return text;
}

}  // namespace

std::string Nearest(std::string_view text, const std::vector<std::string>& known) {
  // Fewest edits; among equals the longest common beginning, for names are mistyped towards their end.
  const auto rank = [&](const std::string& word) {
    const auto [differs, ignored] = std::mismatch(word.begin(), word.end(), text.begin(), text.end());
    return std::pair(static_cast<int64_t>(EditDistance(text, word)), word.begin() - differs);
  };
  const auto nearest = std::min_element(known.begin(), known.end(),
                                        [&](const std::string& a, const std::string& b) { return rank(a) < rank(b); });
  return nearest == known.end() ? "" : *nearest;
}

ObjectReader::ObjectReader(const json& object, std::string path) : object_(object), path_(std::move(path)) {
  if (!object_.is_object()) {
    status_ = InvalidArgument((path_.empty() ? "" : path_ + ": ") + "found " + Shown(object_) +
                              "; expected an object { ... }");
  }
}

const json* ObjectReader::Find(const std::string& key) {
  known_.push_back(key);
  if (!status_.ok()) return nullptr;
  const auto member = object_.find(key);
  return member == object_.end() ? nullptr : &*member;
}

bool ObjectReader::IntegerInRange(const std::string& key, const json& value, const std::string& or_else, int64_t min,
                                  int64_t max, int64_t* out) {
  constexpr uint64_t kTop = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
  const bool fits = value.is_number_unsigned() ? value.get<uint64_t>() <= kTop : value.is_number_integer();
  if (fits) *out = value.get<int64_t>();
  if (fits && *out >= min && *out <= max) return true;
  Expected(key, or_else + "a whole number from " + std::to_string(min) + " to " + std::to_string(max));
  return false;
}

void ObjectReader::Unsigned(const std::string& key, uint64_t* out) {
  const json* value = Find(key);
  if (value == nullptr) return;
  if (!value->is_number_unsigned()) return Expected(key, "a whole number from 0 to 18446744073709551615");
  *out = value->get<uint64_t>();
}

void ObjectReader::Number(const std::string& key, double min, double max, double* out) {
  const json* value = Find(key);
  if (value == nullptr) return;
  const double number = value->is_number() ? value->get<double>() : std::nan("");
  if (number >= min && number <= max) {
    *out = number;
    return;
  }
  std::ostringstream expected;
  expected << "a number from " << min << " to " << max;
  Expected(key, expected.str());
}

void ObjectReader::Bool(const std::string& key, bool* out) {
  const json* value = Find(key);
  if (value == nullptr) return;
  if (!value->is_boolean()) return Expected(key, "true or false");
  *out = value->get<bool>();
}

void ObjectReader::Text(const std::string& key, std::string* out) {
  const json* value = Find(key);
  if (value == nullptr) return;
  if (!value->is_string() || value->get_ref<const std::string&>().empty()) {
    return Expected(key, "a string that is not empty");
  }
  *out = value->get<std::string>();
}

void ObjectReader::Memory(const std::string& key, int64_t min, int64_t max, MemoryAmount* out) {
  const json* value = Find(key);
  if (value == nullptr) return;
  const Result<MemoryAmount> amount = value->is_string() ? ParseMemoryAmount(value->get<std::string>())
                                      : value->is_number_unsigned()
                                          ? ParseMemoryAmount(std::to_string(value->get<uint64_t>()))
                                          : Result<MemoryAmount>(InvalidArgument("no size"));
  if (!amount.ok() || (amount->percent == 0 && (amount->bytes < min || amount->bytes > max))) {
    return Expected(key, "a number of bytes or a string such as \"8GiB\", from " + FormatSize(min) + " to " +
                             FormatSize(max) + ", or a share of the free memory from \"1%\" to \"" +
                             std::to_string(kMaxMemoryPercent) + "%\"");
  }
  *out = *amount;
}

void ObjectReader::Choice(const std::string& key, const std::vector<std::string>& allowed,
                          const std::vector<std::string>& known_elsewhere, std::string* out) {
  const json* value = Find(key);
  if (value == nullptr) return;
  const std::string text = value->is_string() ? value->get<std::string>() : "";
  if (std::find(known_elsewhere.begin(), known_elsewhere.end(), text) != known_elsewhere.end()) {
    return Fail(key, "\"" + text + "\" is not in this build; expected one of " + Quoted(allowed),
                StatusCode::kUnimplemented);
  }
  if (std::find(allowed.begin(), allowed.end(), text) == allowed.end()) {
    return Expected(
        key, "one of " + Quoted(allowed) + (value->is_string() ? "; nearest: \"" + Nearest(text, allowed) + "\"" : ""));
  }
  *out = text;
}

void ObjectReader::Require(const std::string& key) {
  if (status_.ok() && !object_.contains(key)) Fail(key, "is missing and has no default");
}

void ObjectReader::Expected(const std::string& key, const std::string& expected) {
  const auto member = object_.find(key);
  const std::string found = member == object_.end() ? "nothing" : Shown(*member);
  Fail(key, "found " + found + "; expected " + expected);
}

void ObjectReader::Fail(const std::string& key, const std::string& message, StatusCode code) {
  if (status_.ok()) status_ = Status(code, PathOf(key) + ": " + message);
}

void ObjectReader::Adopt(const Status& status) {
  if (status_.ok()) status_ = status;
}

Status ObjectReader::Finish() const {
  if (!object_.is_object()) return status_;
  for (const auto& [key, value] : object_.items()) {
    if (std::find(known_.begin(), known_.end(), key) != known_.end()) continue;
    return InvalidArgument(PathOf(key) + ": unknown key, found with value " + Shown(value) +
                           "; nearest known key: " + PathOf(Nearest(key, known_)));
  }
  return status_;
}

}  // namespace fastdecode
