// The profile's JSON: what is written is read again, and what cannot be true is refused
// with the key that says it.
#include "plan/profile.h"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

namespace fastdecode::plan {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

ModelKey Llama7b() {
  return {.hidden_size = 4096,
          .intermediate_size = 11008,
          .vocab_size = 32000,
          .num_heads = 32,
          .num_kv_heads = 32,
          .head_dim = 128,
          .dtype = "bf16",
          .device = "cpu",
          .threads = 1,
          .transport = "shm"};
}

Profile MakeProfile() {
  ModelProfile model;
  model.name = "llama-7b";
  model.key = Llama7b();
  model.mini_batches = 2;
  model.layer = Curve({{8, 0.01, 0.1}, {64, 0.04, 0.02}});
  model.copy_in = Curve({{8, 1e-4, 0}});
  model.copy_out = Curve({{8, 2e-4, 0}});
  model.outer = Curve({{8, 0.004, 0}});
  model.serving = Curve({{8, 1e-4, 0}});
  model.prefill = Curve({{32, 0.03, 0}});
  model.prefill_outer = Curve({{32, 0.01, 0}});
  RWorkerProfile& rworker = model.rworkers.emplace_back();
  rworker.address = "127.0.0.1:7200";
  rworker.kernel = "avx512";
  rworker.threads = 1;
  rworker.attend = {1.2e-6, 1e-6, 5e-6, 0.03};
  rworker.wire = Curve({{4096, 5e-5, 0.2}, {1 << 20, 5e-4, 0.1}});
  rworker.attended = {{8, Curve({{16, 1e-5, 0.1}, {512, 1e-4, 0.1}})}};
  Profile profile;
  profile.machine = {"host", "a CPU", "6.1", "cpu, 1 thread", 2, int64_t{24} << 30, 1.7e10};
  profile.fastdecode_version = "0.1.0";
  profile.libtorch_version = "2.5";
  profile.measured_seconds = 61.5;
  profile.models.push_back(model);
  return profile;
}

// The message of the profile with `change` made to its JSON.
std::string FaultOf(const std::function<void(json&)>& change) {
  json document = json::parse(ProfileToJson(MakeProfile()));
  change(document);
  const Result<Profile> profile = ParseProfile(document.dump(), "p.json");
  return profile.ok() ? "" : profile.status().message();
}

TEST(CurveTest, GoesThroughItsPoints) {
  const Curve curve({{10, 1, 0}, {20, 3, 0}, {40, 4, 0}});
  EXPECT_DOUBLE_EQ(1, curve.At(10));
  EXPECT_DOUBLE_EQ(2, curve.At(15));
  EXPECT_DOUBLE_EQ(3.5, curve.At(30));
  EXPECT_DOUBLE_EQ(5, curve.At(60));   // the last line goes on
  EXPECT_DOUBLE_EQ(0.6, curve.At(8));  // so does the first
  EXPECT_DOUBLE_EQ(0, curve.At(1));    // but not below nothing
  EXPECT_DOUBLE_EQ(0, Curve().At(5));
  const Curve noisy({{10, 1, 0}, {20, 3, 0}, {40, 2.9, 0}});
  EXPECT_DOUBLE_EQ(2.95, noisy.At(30));
  EXPECT_DOUBLE_EQ(2.9, noisy.At(1000));  // more rows never take less time than were measured
  const Curve one({{10, 1, 0}});
  EXPECT_DOUBLE_EQ(1, one.At(1));
  EXPECT_DOUBLE_EQ(2, one.At(20));
}

TEST(ProfileTest, IsReadAsItWasWritten) {
  const std::string text = ProfileToJson(MakeProfile());
  const Result<Profile> again = ParseProfile(text, "p.json");
  ASSERT_TRUE(again.ok()) << again.status().message();
  EXPECT_EQ(text, ProfileToJson(*again));
  EXPECT_EQ(Llama7b(), again->models[0].key);
  EXPECT_DOUBLE_EQ(1.2e-6, again->models[0].rworkers[0].attend.seconds_per_token);
  EXPECT_TRUE(CheckProfile(MakeProfile()).ok());
}

TEST(ProfileTest, CutShortAnywhereIsAnError) {
  const std::string text = ProfileToJson(MakeProfile());
  for (size_t length = 0; length + 2 < text.size(); length += 7) {
    const Result<Profile> profile = ParseProfile(text.substr(0, length), "p.json");
    ASSERT_FALSE(profile.ok()) << length;
    EXPECT_THAT(profile.status().message(), HasSubstr("p.json: ")) << length;
  }
}

TEST(ProfileTest, NamesTheKeyThatCannotBeTrue) {
  const auto layer = [](json& p) -> json& { return p["models"][0]["layer"][1]; };
  for (const json& bad : {json(0), json(-1.0), json(nullptr), json("0.1"), json(1e9), json(1e-30)}) {
    EXPECT_THAT(FaultOf([&](json& p) { layer(p)["seconds"] = bad; }),
                AllOf(HasSubstr("p.json: models[0].layer[1].seconds: found"), HasSubstr("expected a number from")));
  }
  EXPECT_THAT(FaultOf([&](json& p) { layer(p)["seconds"] = 1e-8; }),
              HasSubstr("models[0].layer[1].seconds: found 1e-08"));
  EXPECT_THAT(FaultOf([&](json& p) { p["models"][0]["rworkers"][0]["seconds_per_token"] = 1e-12; }),
              HasSubstr("models[0].rworkers[0].seconds_per_token: found 1e-12"));
  EXPECT_THAT(FaultOf([&](json& p) { p["models"][0]["key"]["kv_keys"] = "int3"; }), HasSubstr("models[0].key.kv_keys"));
  EXPECT_THAT(FaultOf([&](json& p) { p["models"][0]["key"]["num_kv_heads"] = 5; }), HasSubstr("key.num_kv_heads"));
  EXPECT_THAT(FaultOf([&](json& p) { p["models"][0]["key"]["transport"] = "tcp+shm"; }),
              HasSubstr("models[0].key.transport: found \"tcp+shm\""));
  EXPECT_THAT(FaultOf([&](json& p) { p["models"][0]["key"].erase("transport"); }),
              HasSubstr("models[0].key.transport: is missing"));
  EXPECT_THAT(FaultOf([&](json& p) { layer(p)["rows"] = 8; }), HasSubstr("models[0].layer[1].rows: found 8"));
  EXPECT_THAT(FaultOf([&](json& p) { layer(p).erase("seconds"); }),
              HasSubstr("models[0].layer[1].seconds: is missing"));
  EXPECT_THAT(FaultOf([&](json& p) { p["models"][0]["rworkers"][0]["seconds_per_token"] = 0; }),
              HasSubstr("models[0].rworkers[0].seconds_per_token: found 0"));
  EXPECT_THAT(FaultOf([&](json& p) { p["models"][0]["rworkers"][0]["wire"][0]["spread"] = -0.5; }),
              HasSubstr("models[0].rworkers[0].wire[0].spread: found -0.5"));
  EXPECT_THAT(FaultOf([&](json& p) { p["models"][0]["rworkers"] = json::array(); }), HasSubstr("models[0].rworkers"));
  EXPECT_THAT(FaultOf([&](json& p) { p["models"][0]["rworkers"][0]["attended"][0]["times"][1]["seconds"] = 1e-10; }),
              AllOf(HasSubstr("models[0].rworkers[0].attended[0].times[1].seconds: found 1e-10, which would be"),
                    HasSubstr("bytes/s for this shape")));
  EXPECT_THAT(FaultOf([&](json& p) { p["models"][0]["rworkers"][0]["attended"][0]["times"][1]["seconds"] = -1; }),
              HasSubstr("models[0].rworkers[0].attended[0].times[1].seconds: found -1"));
  EXPECT_THAT(FaultOf([&](json& p) { p["models"] = 3; }), HasSubstr("models: found 3"));
  EXPECT_THAT(FaultOf([&](json& p) { p["models"].push_back(p["models"][0]); }), HasSubstr("models[1].key"));
  EXPECT_THAT(FaultOf([&](json& p) { p["models"][0]["key"]["dtype"] = "fp8"; }), HasSubstr("models[0].key.dtype"));
  EXPECT_THAT(FaultOf([&](json& p) { p["models"][0]["layers"] = 3; }), HasSubstr("nearest known key: models[0].layer"));
  EXPECT_THAT(FaultOf([&](json& p) { p["schema"] = 3; }), HasSubstr("schema: found 3; expected 2"));
  EXPECT_THAT(FaultOf([&](json& p) { p.erase("schema"); }), HasSubstr("schema: is missing"));
}

TEST(ProfileTest, NotANumberIsNamed) {
  std::string text = ProfileToJson(MakeProfile());
  const std::string number = "\"seconds_per_token\": ";
  const size_t at = text.find(number) + number.size();
  text.replace(at, text.find(',', at) - at, "NaN");
  EXPECT_THAT(ParseProfile(text, "p.json").status().message(), HasSubstr("\"seconds_per_token\""));
}

TEST(ProfileTest, FindsTheModelOrSaysWhatDiffers) {
  const Profile profile = MakeProfile();
  ASSERT_TRUE(FindModel(profile, Llama7b()).ok());
  ModelKey other = Llama7b();
  other.hidden_size = 2048;
  other.dtype = "f32";
  EXPECT_THAT(FindModel(profile, other).status().message(),
              AllOf(HasSubstr("hidden 2048"),
                    HasSubstr("llama-7b: hidden_size 4096 instead of 2048, dtype bf16 instead of f32")));
}

// What is negotiated is known late: until then the only entry is the one.
TEST(ProfileTest, TimesOverOneTransportAreNotTakenForAnothers) {
  Profile profile = MakeProfile();
  ModelKey wanted = Llama7b();
  wanted.transport = "tcp";
  EXPECT_THAT(FindModel(profile, wanted).status().message(),
              AllOf(HasSubstr("rows over tcp"), HasSubstr("llama-7b: transport shm instead of tcp")));
  wanted.transport = kAnyTransport;
  EXPECT_EQ("shm", (*FindModel(profile, wanted))->key.transport);
  profile.models.push_back(profile.models[0]);
  profile.models[1].key.transport = "tcp";
  EXPECT_THAT(FindModel(profile, wanted).status().message(), HasSubstr("over shm and tcp: name one"));
  wanted.transport = "tcp";
  EXPECT_EQ("tcp", (*FindModel(profile, wanted))->key.transport);
  profile.models[1].key.transport = kAnyTransport;  // of data sheets
  wanted.transport = "verbs";
  EXPECT_EQ(kAnyTransport, (*FindModel(profile, wanted))->key.transport);
}

TEST(ProfileTest, TransportsAreNamedInOneOrder) {
  EXPECT_EQ("any", TransportsText({}));
  EXPECT_EQ("shm", TransportsText({"shm"}));
  EXPECT_EQ("shm+tcp", TransportsText({"tcp", "shm"}));
  Config config;
  EXPECT_EQ("any", KeyOf(config).transport);
  config.transport.kind = "tcp";
  EXPECT_EQ("tcp", KeyOf(config).transport);
}

}  // namespace
}  // namespace fastdecode::plan
