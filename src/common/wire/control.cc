#include "common/wire/control.h"

namespace fastdecode {

std::string CleanText(std::string_view field) {
  std::string text(field.substr(0, field.find('\0')));
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  }
  return text;
}

}  // namespace fastdecode
