#include "common/config/address.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/config/config.h"

namespace fastdecode {
namespace {

TEST(Address, ParsesNamesAndBothFamilies) {
  EXPECT_EQ(*ParseHostPort("cpu01:7200"), (HostPort{"cpu01", 7200}));
  EXPECT_EQ(*ParseHostPort("127.0.0.1:0"), (HostPort{"127.0.0.1", 0}));
  EXPECT_EQ(*ParseHostPort("[::1]:65535"), (HostPort{"::1", 65535}));
  EXPECT_EQ(*ParseTcpUrl("tcp://[fe80::1]:7100"), (HostPort{"fe80::1", 7100}));
  EXPECT_EQ(ParseHostPort("[::1]:7200")->ToString(), "[::1]:7200");
  EXPECT_EQ(ParseHostPort("a.b-c_d:1")->ToString(), "a.b-c_d:1");
}

TEST(Address, RefusesWhatIsNone) {
  for (const char* text : {"", ":", "cpu01", "cpu01:", ":7200", "::1:7200", "[::1]", "[::1:7200", "[cpu01]:7200",
                           "cpu01:65536", "cpu01:-1", "cpu01:+1", "cpu01:7200x", "cpu01: 7200", "cpu 01:7200",
                           "1.2.3:7200", "1.2.3.256:7200", "tcp://cpu01:7200", "cpu01:99999999999999999999"}) {
    const auto address = ParseHostPort(text);
    ASSERT_FALSE(address.ok()) << text;
    EXPECT_THAT(address.status().message(), testing::HasSubstr("\"" + std::string(text) + "\""));
  }
  for (const char* text : {"127.0.0.1:7100", "ipc:///tmp/x", "tcp:/127.0.0.1:7100", "tcp://*:7100", "TCP://a:1"}) {
    EXPECT_FALSE(ParseTcpUrl(text).ok()) << text;
  }
}

TEST(Size, ParsesBytesAndBinaryUnits) {
  EXPECT_EQ(*ParseSize("0"), 0);
  EXPECT_EQ(*ParseSize("1024"), 1024);
  EXPECT_EQ(*ParseSize("7B"), 7);
  EXPECT_EQ(*ParseSize("3KiB"), 3072);
  EXPECT_EQ(*ParseSize("512 MiB"), 536870912);
  EXPECT_EQ(*ParseSize("8GiB"), 8589934592);
  EXPECT_EQ(*ParseSize("7TiB"), 7696581394432);
  EXPECT_EQ(*ParseSize("9223372036854775807"), 9223372036854775807);
  EXPECT_EQ(*ParseSize("8388607TiB"), 9223370937343148032);
}

TEST(Size, RefusesWhatIsNone) {
  for (const char* text : {"", "GiB", "-1", "-1GiB", "1.5GiB", "8GB", "8G", "8gib", "0x10", "8GiB ", "1e9",
                           "9223372036854775808", "8388608TiB", "99999999999999999999"}) {
    EXPECT_FALSE(ParseSize(text).ok()) << text;
    EXPECT_FALSE(ParseMemoryAmount(text).ok()) << text;
  }
}

TEST(MemoryAmount, IsASizeOrAShareOfTheFreeMemory) {
  EXPECT_EQ(*ParseMemoryAmount("512 MiB"), MemoryAmount{.bytes = 536870912});
  EXPECT_EQ(*ParseMemoryAmount("80%"), MemoryAmount{.percent = 80});
  EXPECT_EQ(*ParseMemoryAmount("1%"), MemoryAmount{.percent = 1});
  EXPECT_EQ(*ParseMemoryAmount("95%"), MemoryAmount{.percent = 95});
  EXPECT_EQ(FormatMemoryAmount({.percent = 80}), "80%");
  EXPECT_EQ(FormatMemoryAmount({.bytes = 3072}), "3KiB");
  for (const char* text : {"%", "0%", "96%", "100%", "-5%", "8.5%", "80 %", "80%%", "80%GiB", "99999999999%"}) {
    EXPECT_FALSE(ParseMemoryAmount(text).ok()) << text;
  }
}

TEST(Size, FormatsTheShortestExactWay) {
  EXPECT_EQ(FormatSize(8589934592), "8GiB");
  EXPECT_EQ(FormatSize(1536), "1536");
  EXPECT_EQ(FormatSize(3072), "3KiB");
  EXPECT_EQ(FormatSize(0), "0");
}

}  // namespace
}  // namespace fastdecode
