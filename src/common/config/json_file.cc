#include "common/config/json_file.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <set>
#include <sstream>
#include <vector>

namespace fastdecode {
namespace {

using nlohmann::json;

constexpr int kMaxDepth = 64;

// An input iterator that tells how far the parser has read.
struct CountingIterator {
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  const char* at;
  const char** furthest;

  const char& operator*() const { return *at; }
  CountingIterator& operator++() {
    *furthest = ++at;
    return *this;
  }
  CountingIterator operator++(int) {
    CountingIterator before = *this;
    ++*this;
    return before;
  }
  friend bool operator==(const CountingIterator& a, const CountingIterator& b) { return a.at == b.at; }
};

std::string LineAndColumn(const std::string& text, size_t offset) {
  const std::string_view before = std::string_view(text).substr(0, offset);
  const auto line = 1 + std::count(before.begin(), before.end(), '\n');
  const size_t newline = before.rfind('\n');
  const size_t column = newline == std::string_view::npos ? offset : offset - newline - 1;
  return "line " + std::to_string(line) + ", column " + std::to_string(column);
}

Result<std::string> ReadFile(const std::string& path) {
  struct stat info;
  if (stat(path.c_str(), &info) != 0) {
    if (errno == ENOENT || errno == ENOTDIR) return NotFound(path + ": no such file");
    return InvalidArgument(path + ": cannot be read: " + std::strerror(errno));
  }
  if (!S_ISREG(info.st_mode)) return InvalidArgument(path + ": expected a JSON file, found something else");
  if (info.st_size > static_cast<int64_t>(kMaxJsonFileBytes))
    return InvalidArgument(path + ": larger than 1 MiB, so it is none of ours");
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  if (!file.is_open()) return InvalidArgument(path + ": cannot be read: " + std::strerror(errno));
  return text.str();
}

}  // namespace

Result<json> ParseJsonText(const std::string& text, const std::string& path) {
  const char* furthest = text.data();
  std::vector<std::set<std::string>> keys;  // of each object that is open
  std::string fault, last_key;
  // At a key the parser has read up to the key's closing quote, not further.
  const auto watch = [&](int depth, json::parse_event_t event, json& parsed) {
    if (event == json::parse_event_t::object_start) keys.emplace_back();
    if (event == json::parse_event_t::object_end) keys.pop_back();
    const size_t offset = static_cast<size_t>(furthest - text.data());
    if (event == json::parse_event_t::key) last_key = parsed.get<std::string>();
    if (event == json::parse_event_t::key && !keys.back().insert(parsed.get<std::string>()).second && fault.empty()) {
      fault = LineAndColumn(text, offset) + ": key " + parsed.dump() + " is given twice";
    }
    if (depth > kMaxDepth && fault.empty()) fault = LineAndColumn(text, offset) + ": nested deeper than 64 levels";
    return true;
  };
  json value;
  try {
    value = json::parse(CountingIterator{text.data(), &furthest},
                        CountingIterator{text.data() + text.size(), &furthest}, watch);
  } catch (const json::exception& error) {
    std::string what = error.what();  // "[json.exception.parse_error.101] parse error at line 2, column 5: ..."
    if (const size_t bracket = what.find("] "); bracket != std::string::npos) what = what.substr(bracket + 2);
    if (!last_key.empty()) what += " (the last key before it: \"" + last_key + "\")";
    return InvalidArgument(path + ": " + what);
  }
  if (!fault.empty()) return InvalidArgument(path + ": " + fault);
  return value;
}

Result<json> ReadJsonFile(const std::string& path) {
  FD_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  return ParseJsonText(text, path);
}

}  // namespace fastdecode
