#include "common/api/msgpack.h"

#include <string>

namespace fastdecode {
namespace {

using nlohmann::json;

// Follows the parser event by event and stops it (by returning false) at the first
// thing that is not allowed. The parser itself recurses once a level, hence the depth.
class LimitingSax final : public json::json_sax_t {
 public:
  const std::string& complaint() const { return complaint_; }

  bool null() override { return Count(); }
  bool boolean(bool) override { return Count(); }
  bool number_integer(number_integer_t) override { return Count(); }
  bool number_unsigned(number_unsigned_t) override { return Count(); }
  bool number_float(number_float_t, const string_t&) override { return Count(); }
  bool string(string_t& text) override { return Text(text) && Count(); }
  bool key(string_t& text) override { return Text(text); }
  bool binary(binary_t&) override { return Complain("a binary or extension value"); }
  bool start_object(std::size_t size) override { return Open(size); }
  bool start_array(std::size_t size) override { return Open(size); }
  bool end_object() override { return Close(); }
  bool end_array() override { return Close(); }
  bool parse_error(std::size_t position, const std::string&, const json::exception&) override {
    return Complain("not msgpack, or cut short, at byte " + std::to_string(position));
  }

 private:
  bool Complain(std::string what) {
    if (complaint_.empty()) complaint_ = std::move(what);
    return false;
  }
  bool Count() {
    return ++values_ <= kMsgpackMaxValues || Complain("more than " + std::to_string(kMsgpackMaxValues) + " values");
  }
  bool Text(const string_t& text) {
    return static_cast<int64_t>(text.size()) <= kMsgpackMaxStringBytes ||
           Complain("a string of " + std::to_string(text.size()) + " bytes; the limit is " +
                    std::to_string(kMsgpackMaxStringBytes));
  }
  bool Open(std::size_t size) {
    if (++depth_ > kMsgpackMaxDepth) return Complain("nested deeper than " + std::to_string(kMsgpackMaxDepth));
    if (size != static_cast<std::size_t>(-1) && size > static_cast<std::size_t>(kMsgpackMaxValues)) {
      return Complain("a list or map that claims " + std::to_string(size) + " entries");
    }
    return Count();
  }
  bool Close() {
    --depth_;
    return true;
  }

  int depth_ = 0;
  int64_t values_ = 0;
  std::string complaint_;
};

}  // namespace

Result<json> ParseMsgpack(std::span<const uint8_t> bytes) {
  LimitingSax sax;
  const bool strict = true;  // nothing may follow the value
  if (!json::sax_parse(bytes.begin(), bytes.end(), &sax, json::input_format_t::msgpack, strict)) {
    return DataLoss(sax.complaint());
  }
  const bool allow_exceptions = false;
  json value = json::from_msgpack(bytes.begin(), bytes.end(), strict, allow_exceptions);
  if (value.is_discarded()) return DataLoss("not msgpack");
  return value;
}

void AppendMsgpack(const json& value, std::vector<uint8_t>& out) { json::to_msgpack(value, out); }

}  // namespace fastdecode
