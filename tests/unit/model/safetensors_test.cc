#include "sworker/model/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <random>

#include "tests/unit/model/safetensors_writer.h"

namespace fastdecode::testing {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;

const std::vector<TensorToWrite>& Tensors() {
  static const std::vector<TensorToWrite> tensors = {{"a", "F32", {2, 3}, std::string(24, 'a')},
                                                     {"b", "BF16", {5}, std::string(10, 'b')},
                                                     {"empty", "F16", {0, 7}, ""},
                                                     {"scalar", "I64", {}, std::string(8, 's')}};
  return tensors;
}
const std::string kData = std::string(24, 'a') + std::string(10, 'b') + std::string(8, 's');

class SafetensorsTest : public ::testing::Test {
 protected:
  // The error of a file of these bytes; empty: it opens.
  std::string Error(const std::string& bytes) {
    const auto file = SafetensorsFile::Open(folder_.Write("x.safetensors", bytes));
    if (file.ok()) return "";
    EXPECT_EQ(file.status().code(), StatusCode::kDataLoss) << file.status().message();
    EXPECT_THAT(file.status().message(), HasSubstr("x.safetensors: "));
    return file.status().message();
  }
  std::string ErrorWith(const std::function<void(json&)>& change) {
    json header = HeaderOf(Tensors());
    change(header);
    return Error(Assemble(header.dump(), kData));
  }

  ScratchFolder folder_;
};

TEST_F(SafetensorsTest, ReadsWhatWasWritten) {
  const auto file = SafetensorsFile::Open(folder_.Write("x.safetensors", FileOf(Tensors())));
  ASSERT_TRUE(file.ok()) << file.status().message();
  ASSERT_EQ((*file)->tensors().size(), 4u);
  const TensorView& b = (*file)->tensors().find("b")->second;
  EXPECT_EQ(b.dtype, "BF16");
  EXPECT_EQ(b.shape, std::vector<int64_t>{5});
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(b.bytes.data()), b.bytes.size()), std::string(10, 'b'));
  EXPECT_EQ((*file)->tensors().find("scalar")->second.shape.size(), 0u);
}

TEST_F(SafetensorsTest, MissingFile) {
  const auto file = SafetensorsFile::Open(folder_.path() + "/none");
  EXPECT_EQ(file.status().code(), StatusCode::kNotFound);
  EXPECT_THAT(file.status().message(), HasSubstr("No such file"));
}

TEST_F(SafetensorsTest, CutShortAnywhere) {
  const std::string whole = FileOf(Tensors());
  for (size_t length = 0; length < whole.size(); ++length) EXPECT_NE(Error(whole.substr(0, length)), "") << length;
  EXPECT_THAT(Error(whole + "x"), HasSubstr("its tensors end at 42 of 43 bytes"));
}

TEST_F(SafetensorsTest, HeaderLengthThatLies) {
  std::string file = FileOf(Tensors());
  for (const uint64_t length : {uint64_t{1} << 63, ~uint64_t{0}, uint64_t{file.size()}, uint64_t{100'000'001}}) {
    std::memcpy(file.data(), &length, sizeof(length));
    EXPECT_THAT(Error(file), AllOf(HasSubstr("header has " + std::to_string(length)), HasSubstr("cut short")));
  }
  const uint64_t zero = 0;
  std::memcpy(file.data(), &zero, sizeof(zero));
  EXPECT_THAT(Error(file), HasSubstr("no JSON object"));
}

TEST_F(SafetensorsTest, OffsetsThatLie) {
  const auto offsets = [&](json value) { return ErrorWith([&](json& h) { h["b"]["data_offsets"] = value; }); };
  EXPECT_THAT(offsets({24, 1000}), AllOf(HasSubstr("tensor b: "), HasSubstr("lie outside the file's 42 bytes")));
  EXPECT_THAT(offsets({34, 24}), HasSubstr("lie outside"));
  EXPECT_THAT(offsets({-1, 9}), HasSubstr("lie outside"));
  EXPECT_THAT(offsets({uint64_t{1} << 63, (uint64_t{1} << 63) + 10}), HasSubstr("lie outside"));
  EXPECT_THAT(offsets({24}), HasSubstr("lie outside"));
  EXPECT_THAT(offsets("24"), HasSubstr("lie outside"));
  EXPECT_THAT(offsets({24.0, 34.0}), HasSubstr("lie outside"));
  EXPECT_THAT(offsets({20, 30}), HasSubstr("it overlaps another"));
  EXPECT_THAT(offsets({26, 36}), HasSubstr("there is a hole"));
  EXPECT_THAT(offsets({24, 36}), HasSubstr("[5] of BF16 needs 10 bytes, but its data_offsets span 12"));
}

TEST_F(SafetensorsTest, ShapesAndDtypesThatLie) {
  const auto with = [&](const char* key, json value) { return ErrorWith([&](json& h) { h["b"][key] = value; }); };
  EXPECT_THAT(with("shape", {6}), HasSubstr("needs 12 bytes, but its data_offsets span 10"));
  EXPECT_THAT(with("shape", {-5}), HasSubstr("impossible shape"));
  EXPECT_THAT(with("shape", {uint64_t{1} << 40, uint64_t{1} << 40}), HasSubstr("impossible shape"));
  EXPECT_THAT(with("shape", {uint64_t{1} << 63}), HasSubstr("impossible shape"));
  EXPECT_THAT(with("shape", {uint64_t{1} << 32, uint64_t{1} << 32, 5}), HasSubstr("impossible shape"));
  EXPECT_THAT(with("shape", 5), HasSubstr("no list"));
  EXPECT_THAT(with("shape", json::array({1, 1, 1, 1, 1, 1, 1, 1, 5})), HasSubstr("no list of at most 8"));
  EXPECT_THAT(with("dtype", "Q4"), HasSubstr("unknown dtype \"Q4\""));
  EXPECT_THAT(with("dtype", 4), HasSubstr("unknown dtype 4"));
  EXPECT_THAT(ErrorWith([](json& h) { h["b"].erase("shape"); }), HasSubstr("needs dtype, shape and data_offsets"));
  EXPECT_THAT(ErrorWith([](json& h) { h["b"] = 7; }), HasSubstr("needs dtype, shape and data_offsets"));
}

TEST_F(SafetensorsTest, TheSameNameTwice) {
  std::string header = HeaderOf(Tensors()).dump();
  header.replace(header.find("\"b\""), 3, "\"a\"");
  EXPECT_THAT(Error(Assemble(header, kData)), HasSubstr("has \"a\" twice"));
}

TEST_F(SafetensorsTest, HeaderThatIsNoObject) {
  for (const char* header : {"", "[]", "7", "{", "{\"a\":", "null"}) {
    EXPECT_THAT(Error(Assemble(header, kData)), HasSubstr("no JSON object")) << header;
  }
  EXPECT_THAT(Error(Assemble(std::string(1'000'000, '['), "")), HasSubstr("no JSON object"));
}

// Whatever a few flipped bytes make of a file, it opens or is refused; what it then says
// lies within the file.
TEST_F(SafetensorsTest, FlippedBytes) {
  const std::string whole = FileOf(Tensors());
  std::mt19937 random(1);
  for (int round = 0; round < 1000; ++round) {
    std::string file = whole;
    for (int flips = 0; flips < 1 + round % 3; ++flips) {
      file[random() % (whole.size() - kData.size())] = static_cast<char>(random());
    }
    const auto opened = SafetensorsFile::Open(folder_.Write("x.safetensors", file));
    if (!opened.ok()) continue;
    size_t sum = 0;
    for (const auto& [name, view] : (*opened)->tensors()) {
      for (const std::byte b : view.bytes) sum += static_cast<size_t>(b);
    }
    EXPECT_GT(sum, 0u);
  }
}

}  // namespace
}  // namespace fastdecode::testing
