#include "common/traces/request_trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

namespace fastdecode {
namespace {

using testing::HasSubstr;

const std::string kTraces = std::string(SOURCE_DIR) + "/bench/traces/";

std::string Write(const std::string& content) {
  const std::string path = testing::TempDir() + "trace";
  std::ofstream(path) << content;
  return path;
}

TEST(Trace, ReadsAzure) {
  const auto entries = ReadTrace(kTraces + "azure_conv_2023.csv");
  ASSERT_TRUE(entries.ok()) << entries.status().ToString();
  ASSERT_EQ(entries->size(), 2000u);
  EXPECT_EQ((*entries)[0].prompt_tokens, 374);
  EXPECT_EQ((*entries)[0].output_tokens, 44);
  EXPECT_EQ((*entries)[0].arrival_s, 0);
  EXPECT_EQ((*entries)[1].prompt_tokens, 396);
  EXPECT_NEAR((*entries)[1].arrival_s, 4.314579, 1e-5);  // 18:15:50.9951690 - 18:15:46.6805900
  for (size_t i = 1; i < entries->size(); ++i) EXPECT_GE((*entries)[i].arrival_s, (*entries)[i - 1].arrival_s);
}

TEST(Trace, ReadsMooncake) {
  const auto entries = ReadTrace(kTraces + "mooncake_conv.jsonl");
  ASSERT_TRUE(entries.ok()) << entries.status().ToString();
  ASSERT_EQ(entries->size(), 200u);
  EXPECT_EQ((*entries)[0].prompt_tokens, 6758);
  EXPECT_EQ((*entries)[2].output_tokens, 794);
}

TEST(Trace, MidnightIsNoStepBack) {
  const auto entries =
      ReadTrace(Write("TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
                      "2023-12-31 23:59:59.5,1,1\r\n2024-01-01 00:00:00.5,2,2\r\n"));
  ASSERT_TRUE(entries.ok()) << entries.status().ToString();
  EXPECT_NEAR((*entries)[1].arrival_s, 1.0, 1e-6);
}

TEST(Trace, FaultsNameTheLine) {
  const auto message = [](const std::string& content) { return ReadTrace(Write(content)).status().message(); };
  EXPECT_THAT(message("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6,1\n"), HasSubstr("line 2"));
  EXPECT_THAT(message("2023-11-16 18:15:46.6,1,2,3\n"), HasSubstr("line 1"));
  EXPECT_THAT(message("2023-11-16 18:15:46.6,-1,2\n"), HasSubstr("line 1"));
  EXPECT_THAT(message("{\"timestamp\": 0, \"input_length\": 5}\n"), HasSubstr("line 1"));
  EXPECT_THAT(message("{\"timestamp\": 0, \"input_length\": 5, \"output_length\": 1}\n{\"timest"), HasSubstr("line 2"));
  EXPECT_THAT(message("{\"timestamp\": 0.5, \"input_length\": 3.7, \"output_length\": 1}\n"), HasSubstr("line 1"));
  EXPECT_THAT(message("{\"timestamp\": 0, \"input_length\": 1e308, \"output_length\": 1}\n"), HasSubstr("line 1"));
  EXPECT_THAT(message(""), HasSubstr("no entry"));
  EXPECT_THAT(ReadTrace("/nowhere/trace").status().message(), HasSubstr("cannot be opened"));
}

}  // namespace
}  // namespace fastdecode
