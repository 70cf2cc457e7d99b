#include <charconv>
#include <limits>

#include "common/config/config.h"

namespace fastdecode {
namespace {

struct Unit {
  const char* name;
  int64_t bytes;
};

constexpr Unit kUnits[] = {{"TiB", int64_t{1} << 40},
                           {"GiB", int64_t{1} << 30},
                           {"MiB", int64_t{1} << 20},
                           {"KiB", int64_t{1} << 10},
                           {"B", 1},
                           {"", 1}};

}  // namespace

Result<int64_t> ParseSize(const std::string& text) {
  const Status malformed =
      InvalidArgument("\"" + text.substr(0, 80) +
                      "\" is not a size; expected a whole number of bytes or one with KiB, MiB, GiB or TiB, "
                      "such as 8GiB");
  int64_t number = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc() || number < 0) return malformed;
  const char* unit_begin = rest;
  while (unit_begin != end && *unit_begin == ' ') ++unit_begin;
  const std::string unit_text(unit_begin, end);
  for (const Unit& unit : kUnits) {
    if (unit_text != unit.name) continue;
    if (number > std::numeric_limits<int64_t>::max() / unit.bytes) return malformed;
    return number * unit.bytes;
  }
  return malformed;
}

Result<MemoryAmount> ParseMemoryAmount(const std::string& text) {
  if (!text.ends_with('%')) {
    Result<int64_t> bytes = ParseSize(text);
    if (bytes.ok()) return MemoryAmount{.bytes = *bytes};
    return InvalidArgument(bytes.status().message() + ", or a share of the free memory, such as 80%");
  }
  MemoryAmount amount;
  const char* const end = text.data() + text.size() - 1;
  const auto [rest, error] = std::from_chars(text.data(), end, amount.percent);
  if (error == std::errc() && rest == end && amount.percent >= 1 && amount.percent <= kMaxMemoryPercent) return amount;
  return InvalidArgument("\"" + text.substr(0, 80) +
                         "\" is no share of the free memory; expected a whole number from 1% to " +
                         std::to_string(kMaxMemoryPercent) + "% (the process and the system need the rest)");
}

std::string FormatMemoryAmount(const MemoryAmount& amount) {
  return amount.percent > 0 ? std::to_string(amount.percent) + "%" : FormatSize(amount.bytes);
}

std::string FormatSize(int64_t bytes) {
  for (const Unit& unit : kUnits) {
    if (unit.bytes > 1 && bytes >= unit.bytes && bytes % unit.bytes == 0) {
      return std::to_string(bytes / unit.bytes) + unit.name;
    }
  }
  return std::to_string(bytes);
}

}  // namespace fastdecode
