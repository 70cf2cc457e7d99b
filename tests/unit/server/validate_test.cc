#include "sworker/server/validate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

namespace fastdecode {
namespace {

using testing::HasSubstr;

constexpr int kContext = 16;

ModelConfig Model() {
  ModelConfig model;
  model.vocab_size = 100;
  return model;
}

Request Asking(size_t prompt_tokens) {
  Request request;
  request.prompt.assign(prompt_tokens, 1);
  request.sampling.max_tokens = 4;
  return request;
}

std::string Code(Request request) {
  const auto error = ValidateRequest(request, Model(), kContext);
  return error ? error->code : "";
}

TEST(ValidateRequest, LetsTheOrdinaryPass) {
  Request request = Asking(3);
  request.sampling.stop_ids = {99};
  EXPECT_FALSE(ValidateRequest(request, Model(), kContext));
  EXPECT_EQ(request.sampling.max_tokens, 4);
}

TEST(ValidateRequest, ClipsToTheContext) {
  Request request = Asking(14);
  EXPECT_FALSE(ValidateRequest(request, Model(), kContext));
  EXPECT_EQ(request.sampling.max_tokens, 2);
  request = Asking(15);
  request.sampling.max_tokens = std::numeric_limits<int>::max();
  EXPECT_FALSE(ValidateRequest(request, Model(), kContext));
  EXPECT_EQ(request.sampling.max_tokens, 1);
}

TEST(ValidateRequest, RefusesByCode) {
  EXPECT_EQ(Code(Asking(0)), "empty_prompt");
  EXPECT_EQ(Code(Asking(16)), "too_long");
  Request request = Asking(3);
  request.prompt[2] = 100;
  EXPECT_EQ(Code(request), "bad_token");
  EXPECT_THAT(ValidateRequest(request, Model(), kContext)->message,
              HasSubstr("prompt[2] is 100: the model's ids go from 0 to 99"));
  request.prompt[2] = -1;
  EXPECT_EQ(Code(request), "bad_token");
  request = Asking(3);
  request.sampling.stop_ids = {5, 100};
  EXPECT_EQ(Code(request), "bad_token");
}

TEST(ValidateRequest, RefusesParametersOutOfRange) {
  const auto with = [](auto change) {
    Request request = Asking(3);
    change(request.sampling);
    return Code(request);
  };
  EXPECT_EQ(with([](auto& s) { s.max_tokens = 0; }), "bad_parameter");
  EXPECT_EQ(with([](auto& s) { s.max_tokens = -5; }), "bad_parameter");
  EXPECT_EQ(with([](auto& s) { s.temperature = -0.1f; }), "bad_parameter");
  EXPECT_EQ(with([](auto& s) { s.temperature = std::nanf(""); }), "bad_parameter");
  EXPECT_EQ(with([](auto& s) { s.temperature = INFINITY; }), "bad_parameter");
  EXPECT_EQ(with([](auto& s) { s.top_k = -1; }), "bad_parameter");
  EXPECT_EQ(with([](auto& s) { s.top_p = 0; }), "bad_parameter");
  EXPECT_EQ(with([](auto& s) { s.top_p = 1.01f; }), "bad_parameter");
  EXPECT_EQ(with([](auto& s) { s.top_p = 1; }), "");
}

}  // namespace
}  // namespace fastdecode
