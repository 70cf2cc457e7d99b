#include "common/api/api_codec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <random>

#include "common/api/msgpack.h"

namespace fastdecode {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;

std::vector<uint8_t> FromHex(const std::string& hex) {
  std::vector<uint8_t> bytes;
  for (size_t i = 0; i < hex.size(); i += 2)
    bytes.push_back(static_cast<uint8_t>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  return bytes;
}

template <typename Message>
std::vector<uint8_t> Encoded(const Message& message) {
  std::vector<uint8_t> bytes;
  Encode(message, bytes);
  return bytes;
}

MalformedMessage Malformed(const json& message) {
  auto decoded = DecodeClientMessage(json::to_msgpack(message));
  if (auto* malformed = std::get_if<MalformedMessage>(&decoded)) return *malformed;
  ADD_FAILURE() << message << " was believed";
  return {};
}

json Submit() { return {{"type", "submit"}, {"id", 7}, {"prompt", {1, 2}}}; }
json With(const char* name, json value) {
  json message = Submit();
  message[name] = std::move(value);
  return message;
}

// msgpack.packb({"type": "submit", "id": 7, "prompt": [1, 300, 70000], "temperature": 0.5, "seed": 2**64 - 1})
// by Python's msgpack.
TEST(ApiCodec, ReadsWhatPythonWrites) {
  const auto decoded = DecodeClientMessage(
      FromHex("85a474797065a67375626d6974a2696407a670726f6d70749301cd012cce00011170ab74656d7065726174757265cb3fe00000"
              "00000000a473656564cfffffffffffffffff"));
  const auto& submit = std::get<SubmitMessage>(std::get<ClientMessage>(decoded));
  EXPECT_EQ(submit.id, 7u);
  EXPECT_THAT(submit.prompt, ElementsAre(1, 300, 70000));
  EXPECT_EQ(submit.temperature, 0.5);
  EXPECT_EQ(submit.seed, std::numeric_limits<uint64_t>::max());
  EXPECT_EQ(submit.max_tokens, 256);
  EXPECT_TRUE(submit.stream);
}

TEST(ApiCodec, ClientMessagesSurvive) {
  SubmitMessage submit;
  submit.id = 3;
  submit.prompt = {5, 0, 2147483647};
  submit.max_tokens = 9;
  submit.top_k = 4;
  submit.top_p = 0.25;
  submit.seed = 0;
  submit.stop_ids = {6};
  submit.ignore_eos = submit.logprobs = true;
  submit.stream = false;
  const auto decoded = DecodeClientMessage(Encoded(submit));
  const auto& back = std::get<SubmitMessage>(std::get<ClientMessage>(decoded));
  EXPECT_EQ(back.prompt, submit.prompt);
  EXPECT_EQ(back.seed, 0u);
  EXPECT_THAT(back.stop_ids, ElementsAre(6));
  EXPECT_TRUE(back.ignore_eos && back.logprobs && !back.stream);
  EXPECT_EQ(back.top_p, 0.25);
  const auto hello = DecodeClientMessage(Encoded(HelloMessage{1, "x"}));
  EXPECT_EQ(std::get<HelloMessage>(std::get<ClientMessage>(hello)).client, "x");
  const auto stats = DecodeClientMessage(Encoded(StatsMessage{true}));
  EXPECT_TRUE(std::get<StatsMessage>(std::get<ClientMessage>(stats)).reset);
}

TEST(ApiCodec, ServerMessagesSurvive) {
  const auto tokens = DecodeServerMessage(Encoded(TokensMessage{{1, 2}, {10, 20}, {std::nullopt, -0.5f}}));
  ASSERT_TRUE(tokens.ok()) << tokens.status().ToString();
  EXPECT_THAT(std::get<TokensMessage>(*tokens).logprobs, ElementsAre(std::nullopt, -0.5f));
  FinishedMessage message;
  message.id = 4;
  message.finish_reason = "error";
  message.token_ids = {7, 8};
  message.logprobs = {-1.5f, -2.0f};
  message.error_code = "rworker_lost";
  message.error_message = "cpu01 is gone";
  const auto finished = DecodeServerMessage(Encoded(message));
  ASSERT_TRUE(finished.ok()) << finished.status().ToString();
  EXPECT_EQ(std::get<FinishedMessage>(*finished).error_code, "rworker_lost");
  EXPECT_THAT(std::get<FinishedMessage>(*finished).token_ids, ElementsAre(7, 8));
  EXPECT_THAT(*std::get<FinishedMessage>(*finished).logprobs, ElementsAre(-1.5f, -2.0f));
  ServerInfo info;
  info.vocab_size = 10;
  info.max_context = 20;
  info.eos_token_ids = {2, 3};
  const auto server = DecodeServerMessage(Encoded(info));
  ASSERT_TRUE(server.ok()) << server.status().ToString();
  EXPECT_THAT(std::get<ServerInfo>(*server).eos_token_ids, ElementsAre(2, 3));
}

TEST(ApiCodec, UnevenColumnsAreRefused) {
  EXPECT_FALSE(DecodeServerMessage(Encoded(TokensMessage{{1, 2}, {10}, {}})).ok());
}

TEST(ApiCodec, FaultsNameFieldFoundAndExpected) {
  EXPECT_THAT(Malformed(With("max_token", 4)).reason,
              HasSubstr("unknown field 'max_token'; the nearest known one is 'max_tokens'"));
  EXPECT_EQ(Malformed(With("max_token", 4)).submit_id, 7u);
  EXPECT_THAT(Malformed(With("temperature", "hot")).reason,
              HasSubstr("temperature must be a finite number, found string \"hot\""));
  EXPECT_THAT(Malformed(With("prompt", {1, -1})).reason,
              HasSubstr("prompt[1] must be an integer from 0 to 2147483647, found number -1"));
  EXPECT_THAT(Malformed(With("prompt", {1, 2147483648})).reason, HasSubstr("prompt[1]"));
  EXPECT_THAT(Malformed(With("prompt", {1, 1.5})).reason, HasSubstr("prompt[1]"));
  EXPECT_THAT(Malformed(With("prompt", "text")).reason, HasSubstr("must be a list"));
  EXPECT_THAT(Malformed(With("top_p", std::numeric_limits<double>::quiet_NaN())).reason, HasSubstr("finite"));
  EXPECT_THAT(Malformed(With("seed", -1)).reason, HasSubstr("seed"));
  EXPECT_THAT(Malformed(With("stream", 1)).reason, HasSubstr("true or false"));
  EXPECT_THAT(Malformed(With("stop_ids", std::vector<int>(kApiMaxStopIds + 1))).reason, HasSubstr("at most 1024"));
  json missing = Submit();
  missing.erase("prompt");
  EXPECT_THAT(Malformed(missing).reason, HasSubstr("field 'prompt' is missing"));
  EXPECT_THAT(Malformed({{"type", "submitt"}}).reason, HasSubstr("'submit'"));
  EXPECT_FALSE(Malformed(With("id", -3)).submit_id.has_value());
  EXPECT_THAT(Malformed(json::array({1})).reason, HasSubstr("must be a map"));
  EXPECT_THAT(Malformed({{"id", 1}}).reason, HasSubstr("'type'"));
}

TEST(ApiCodec, HostileTextIsPrintable) {
  json message = Submit();
  message["evil\n\x1b[31m\xff"] = 1;
  const std::string reason = Malformed(message).reason;
  for (const char c : reason) EXPECT_TRUE(c >= 0x20 && c < 0x7f);
}

TEST(Msgpack, LimitsComeBeforeMemoryAndStack) {
  const auto complaint = [](const std::vector<uint8_t>& bytes) { return ParseMsgpack(bytes).status().message(); };
  EXPECT_THAT(complaint(std::vector<uint8_t>(1 << 20, 0x91)), HasSubstr("nested deeper"));  // [[[[...
  EXPECT_THAT(complaint({0xdd, 0xff, 0xff, 0xff, 0xff}), HasSubstr("claims 4294967295 entries"));
  EXPECT_THAT(complaint({0xdb, 0xff, 0xff, 0xff, 0xff, 'x'}), HasSubstr("cut short"));
  EXPECT_THAT(complaint({0xc4, 0x01, 0x00}), HasSubstr("binary"));
  EXPECT_THAT(complaint({0xd4, 0x01, 0x00}), HasSubstr("binary or extension"));
  EXPECT_THAT(complaint({0x80, 0x80}), HasSubstr("cut short, at byte"));
  EXPECT_THAT(complaint({}), HasSubstr("cut short"));
  EXPECT_THAT(complaint({0xc1}), HasSubstr("not msgpack"));
  std::vector<uint8_t> many = {0xdd, 0x00, 0x1f, 0xff, 0xff};
  many.resize(many.size() + 0x1fffff, 0xc0);  // one list and 2^21 - 1 values: just allowed
  EXPECT_TRUE(ParseMsgpack(many).ok());
  std::vector<uint8_t> text = {0xdb, 0x00, 0x01, 0x00, 0x01};
  text.resize(text.size() + 0x10001, 'x');
  EXPECT_THAT(complaint(text), HasSubstr("a string of 65537 bytes"));
}

// Whatever happens to a message's bytes, decoding ends with a value or a reason.
TEST(ApiCodec, MutatedMessagesNeverCrash) {
  std::mt19937 random(20240317);
  json message = Submit();
  message["stop_ids"] = {1, 2, 3};
  message["temperature"] = 0.7;
  message["seed"] = 12345678901u;
  const std::vector<uint8_t> valid = json::to_msgpack(message);
  int refused = 0;
  for (int i = 0; i < 20000; ++i) {
    std::vector<uint8_t> bytes = valid;
    for (int edits = 1 + static_cast<int>(random() % 4); edits > 0; --edits) {
      const size_t at = random() % bytes.size();
      switch (random() % 3) {
        case 0:
          bytes[at] = static_cast<uint8_t>(random());
          break;
        case 1:
          bytes.resize(at + 1);
          break;
        default:
          bytes.insert(bytes.begin() + static_cast<std::ptrdiff_t>(at), static_cast<uint8_t>(random()));
      }
    }
    const auto decoded = DecodeClientMessage(bytes);
    if (const auto* malformed = std::get_if<MalformedMessage>(&decoded)) {
      ++refused;
      EXPECT_FALSE(malformed->reason.empty());
    }
    (void)DecodeServerMessage(bytes);
  }
  EXPECT_GT(refused, 15000);
}

}  // namespace
}  // namespace fastdecode
