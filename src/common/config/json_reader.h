// Reads the members of a JSON object that comes from a user's hands: bounded, with errors
// that name the key, what was found and what was expected: for configs and profiles.
#pragma once

#include <concepts>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "common/config/config.h"

namespace fastdecode {

// The entry of `known` with the fewest edits from `text`; empty if there are none.
std::string Nearest(std::string_view text, const std::vector<std::string>& known);

// Reads the members of one JSON object. A member that is absent leaves its target as
// it is; after the first fault the readers do nothing more.
class ObjectReader {
 public:
  // `path` is the object's own full key path, "" for the root. Borrows `object`.
  ObjectReader(const nlohmann::json& object, std::string path);

  // The member or nullptr; from now on `key` is a known one.
  const nlohmann::json* Find(const std::string& key);

  template <std::integral T>
  void Integer(const std::string& key, int64_t min, int64_t max, T* out) {
    if (const nlohmann::json* value = Find(key)) ReadInteger(key, *value, "", min, max, out);
  }
  // "auto" reads as 0.
  template <std::integral T>
  void AutoOrInteger(const std::string& key, int64_t min, int64_t max, T* out) {
    const nlohmann::json* value = Find(key);
    if (value == nullptr) return;
    if (*value == "auto") {
      *out = 0;
    } else {
      ReadInteger(key, *value, "\"auto\" or ", min, max, out);
    }
  }
  void Unsigned(const std::string& key, uint64_t* out);
  void Number(const std::string& key, double min, double max, double* out);
  void Bool(const std::string& key, bool* out);
  void Text(const std::string& key, std::string* out);  // not empty
  // A number of bytes or a string such as "8GiB" or, of the free memory, "80%".
  void Memory(const std::string& key, int64_t min, int64_t max, MemoryAmount* out);
  // One of `allowed`; one of `known_elsewhere` is refused by name.
  void Choice(const std::string& key, const std::vector<std::string>& allowed,
              const std::vector<std::string>& known_elsewhere, std::string* out);

  void Require(const std::string& key);
  // Records "key: found X; expected Y" unless something is wrong already.
  void Expected(const std::string& key, const std::string& expected);
  // Records "key: message".
  void Fail(const std::string& key, const std::string& message, StatusCode code = StatusCode::kInvalidArgument);
  // Records a child object's fault, which names its own path.
  void Adopt(const Status& status);

  std::string PathOf(const std::string& key) const { return path_.empty() ? key : path_ + "." + key; }
  const Status& status() const { return status_; }
  // The first fault; an unknown key is told before all else, since it is often the cause of the rest.
  Status Finish() const;

 private:
  bool IntegerInRange(const std::string& key, const nlohmann::json& value, const std::string& or_else, int64_t min,
                      int64_t max, int64_t* out);
  template <std::integral T>
  void ReadInteger(const std::string& key, const nlohmann::json& value, const std::string& or_else, int64_t min,
                   int64_t max, T* out) {
    int64_t number = 0;
    if (IntegerInRange(key, value, or_else, min, max, &number)) *out = static_cast<T>(number);
  }

  const nlohmann::json& object_;
  std::string path_;
  std::vector<std::string> known_;
  Status status_;
};

}  // namespace fastdecode
