#include "common/wire/control.h"

namespace fastdecode {
namespace {

// Bytes of the UTF-8 character that the text begins with; 0: it begins with none.
size_t CharacterBytes(std::string_view text) {
  const auto byte = [text](size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0U; };
  const unsigned first = byte(0), second = byte(1);
  if (first < 0x80) return 1;
  const size_t size = first < 0xc2 ? 0 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : first < 0xf5 ? 4 : 0;
  for (size_t i = 1; i < size; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
  }
  const bool too_long = (first == 0xe0 && second < 0xa0) || (first == 0xf0 && second < 0x90);
  const bool no_character = (first == 0xed && second > 0x9f) || (first == 0xf4 && second > 0x8f);
  return too_long || no_character ? 0 : size;
}

}  // namespace

std::string CleanText(std::string_view field) {
  std::string text(field.substr(0, field.find('\0')));
  for (size_t at = 0; at < text.size();) {
    const size_t size = CharacterBytes(std::string_view(text).substr(at));
    const bool control = static_cast<unsigned char>(text[at]) < 0x20 || text[at] == 0x7f;
    if (size == 0 || control) text[at] = '?';
    at += size == 0 ? 1 : size;
  }
  return text;
}

}  // namespace fastdecode
