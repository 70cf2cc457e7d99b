#include "common/wire/control.h"

#include <gtest/gtest.h>

#include "common/wire/messages.h"

namespace fastdecode {
namespace {

TEST(Control, TextsAreCutToTheirFieldAndAlwaysEnd) {
  Goodbye goodbye;
  SetText(goodbye.text, std::string(1000, 'x'));
  EXPECT_EQ(goodbye.text[sizeof(goodbye.text) - 1], '\0');
  EXPECT_EQ(GetText(goodbye.text), std::string(sizeof(goodbye.text) - 1, 'x'));
}

TEST(Control, TextsFromOutsideCannotForgeLogLinesOrRunOn) {
  char field[8];
  std::memcpy(field, "a\nb\033c\0z", sizeof(field));
  EXPECT_EQ(GetText(field), "a?b?c");
  std::memset(field, 'y', sizeof(field));  // no end at all
  EXPECT_EQ(GetText(field), "yyyyyyyy");
}

TEST(Control, TextsFromOutsideAreUtf8) {
  for (const char* text :
       {"rworker", "Zürich", "\xe2\x82\xac", "\xf0\x9f\x98\x80", "\xed\x9f\xbf", "\xf4\x8f\xbf\xbf"}) {
    EXPECT_EQ(CleanText(text), text);
  }
  struct Case {
    const char* text;
    const char* clean;
  };
  const Case cases[] = {
      {"a\xff\xfe", "a??"},          // no such bytes
      {"\x80 b", "? b"},             // continues nothing
      {"Z\xc3", "Z?"},               // cut
      {"\xe2\x82", "??"},            // cut
      {"\xe2(\xa1", "?(?"},          // not continued
      {"\xc0\xaf", "??"},            // '/' in two bytes
      {"\xe0\x80\xaf", "???"},       // in three
      {"\xf0\x80\x80\xaf", "????"},  // in four
      {"\xed\xa0\x80", "???"},       // half of a pair of UTF-16
      {"\xf4\x90\x80\x80", "????"},  // beyond U+10FFFF
      {"\xc3\n", "??"},
  };
  for (const Case& c : cases) EXPECT_EQ(CleanText(c.text), c.clean);
  Goodbye goodbye;
  SetText(goodbye.text, std::string(254, 'x') + "\xc3\xbc");  // does not fit whole
  EXPECT_EQ(GetText(goodbye.text), std::string(254, 'x') + "?");
}

TEST(Control, OnlyKnownFramesHaveASize) {
  for (int type = 0; type < 65536; ++type) {
    bool known = type >= 1 && type <= 8;
    EXPECT_EQ(FramePayloadBytes(static_cast<uint16_t>(type)) != 0, known) << type;
  }
}

TEST(Messages, OnlyNamedTypesAreKnown) {
  const int known[] = {1, 2, 3, 4, 5, 16, 17, 18, 19};
  for (int type = 0; type < 65536; ++type) {
    bool expected = std::find(std::begin(known), std::end(known), type) != std::end(known);
    EXPECT_EQ(IsKnownMessageType(static_cast<uint16_t>(type)), expected) << type;
  }
}

// The bytes on the wire, field by field, as docs/wire.md gives their offsets.
TEST(Messages, HeaderFieldsLieWhereTheDocumentSays) {
  EXPECT_EQ(offsetof(MessageHeader, type), 6U);
  EXPECT_EQ(offsetof(MessageHeader, incarnation), 8U);
  EXPECT_EQ(offsetof(MessageHeader, payload_bytes), 12U);
  EXPECT_EQ(offsetof(MessageHeader, mini_batch), 16U);
  EXPECT_EQ(offsetof(MessageHeader, layer), 18U);
  EXPECT_EQ(offsetof(MessageHeader, rows), 20U);
  EXPECT_EQ(offsetof(MessageHeader, step), 24U);
  EXPECT_EQ(offsetof(MessageHeader, sequence), 32U);
  EXPECT_EQ(offsetof(MessageHeader, position), 40U);
  EXPECT_EQ(offsetof(MessageHeader, dtype), 44U);
  EXPECT_EQ(offsetof(MessageHeader, compute_ns), 48U);
  EXPECT_EQ(offsetof(MessageHeader, queue_ns), 52U);
  EXPECT_EQ(offsetof(MessageHeader, context_tokens), 56U);
  EXPECT_EQ(offsetof(SessionOpen, transport), 44U);
  EXPECT_EQ(offsetof(SessionOpen, lanes), 48U);
  EXPECT_EQ(offsetof(SessionOpen, name), 80U);
  EXPECT_EQ(offsetof(SessionGrant, kv_blocks), 8U);
  EXPECT_EQ(offsetof(SessionGrant, hostname), 32U);
}

}  // namespace
}  // namespace fastdecode
