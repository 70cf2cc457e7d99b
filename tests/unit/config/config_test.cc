#include "common/config/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>

#include <nlohmann/json.hpp>

#include "temp_folder.h"

namespace fastdecode {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
using testing::SizeIs;
using testing::StartsWith;

class ConfigTest : public testing::Test {
 protected:
  ConfigTest() { folder_.Write("model/config.json", ReadText(SourceFile("tests/data/configs/llama-2-7b.json"))); }

  Result<Config> LoadText(const std::string& text) { return LoadConfig(folder_.Write("cluster.json", text)); }

  // The smallest config with some members (JSON pointers) set; null removes one.
  Result<Config> LoadWith(const std::vector<std::pair<std::string, json>>& members) {
    json config = {{"model", {{"path", "model"}}}, {"rworkers", {{"count", 2}}}};
    for (const auto& [pointer, value] : members) {
      const json::json_pointer at(pointer);
      if (value.is_null()) {
        config[at.parent_pointer()].erase(at.back());
      } else {
        config[at] = value;
      }
    }
    return LoadText(config.dump(2));
  }

  std::string MessageWith(const std::string& pointer, const json& value) {
    return LoadWith({{pointer, value}}).status().message();
  }

  TempFolder folder_;
};

TEST_F(ConfigTest, DefaultsAreFilledIn) {
  const auto config = LoadWith({});
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_EQ(config->path, folder_.path() + "/cluster.json");
  EXPECT_EQ(config->model.path, folder_.path() + "/model");
  EXPECT_EQ(config->transport.secret_file, folder_.path() + "/cluster.secret");
  EXPECT_EQ(config->model.layers, 32);
  EXPECT_EQ(config->model.max_context, 4096);
  EXPECT_EQ(config->max_context, 4096);
  EXPECT_EQ(config->model_config.attention, (AttentionShape{32, 32, 32, 128}));
  EXPECT_EQ(config->model.dtype, DType::kAuto);
  EXPECT_EQ(config->sworker, SWorkerOptions{});
  EXPECT_EQ(config->pipeline, PipelineOptions{});
  EXPECT_EQ(config->load_control, LoadControlOptions{});
  EXPECT_EQ(config->rworkers.count, 2);
}

// Every key of the documented example, with values that differ from the defaults.
TEST_F(ConfigTest, ReadsEveryKey) {
  const auto config = LoadText(R"({
    "model": { "path": "./x/../model/", "dtype": "bf16", "weights": "random", "layers": 2,
               "seed": 18446744073709551615, "max_context": 1000, "shape": "2x32x32x128" },
    "sworker": { "device": "cuda:1", "threads": 8, "listen": "tcp://[::1]:7111", "pin": false },
    "rworkers": {
      "threads": 3, "kv_memory": "8GiB", "block_tokens": 64, "kv_dtype": {"keys": "int8", "values": "int4"},
      "kernel": "avx2",
      "hosts": [ { "address": "cpu01:7200", "ssh": "user@cpu01", "threads": 32, "kv_memory": "200GiB" },
                 { "address": "[::1]:7201", "listen": "[::]:7201", "bin": "/opt/fastdecode/bin",
                   "kv_memory": "80%" } ] },
    "pipeline": { "mini_batches": 3, "max_batch": 1024, "prefill_tokens_per_step": 512 },
    "load_control": { "enabled": false, "workload_limit": 65536, "interval_steps": 4 },
    "transport": { "kind": "tcp", "secret_file": "/etc/fastdecode/secret", "heartbeat_ms": 100, "peer_timeout_ms": 700,
                   "spin_us": 0,
                   "verbs": { "device": "mlx5_0", "port": 2, "gid_index": 3, "service_level": 4, "traffic_class": 105 } }
  })");
  ASSERT_TRUE(config.ok()) << config.status().message();
  const ModelOptions model = {folder_.path() + "/model", DType::kBf16, WeightSource::kRandom, 2, UINT64_MAX, 1000,
                              {2, 32, 32, 128}};
  EXPECT_EQ(config->model, model);
  EXPECT_EQ(config->model_config.attention.num_layers, 2);
  EXPECT_EQ(config->max_context, 1000);
  EXPECT_EQ(config->sworker, (SWorkerOptions{"cuda:1", 8, "tcp://[::1]:7111", false}));
  const int64_t gib = int64_t{1} << 30;
  const RWorkerHost first = {"cpu01:7200", "cpu01:7200", "user@cpu01", "", 32, {.bytes = 200 * gib}};
  const RWorkerHost second = {"[::1]:7201", "[::]:7201", "", "/opt/fastdecode/bin", 3, {.percent = 80}};
  EXPECT_EQ(config->rworkers,
            (RWorkersOptions{0, {first, second}, 3, {.bytes = 8 * gib}, 64, {"int8", "int4"}, "avx2"}));
  EXPECT_EQ(config->pipeline, (PipelineOptions{3, 1024, 512}));
  EXPECT_EQ(config->load_control, (LoadControlOptions{false, 65536, 4}));
  EXPECT_EQ(config->transport,
            (TransportOptions{"tcp", "/etc/fastdecode/secret", 100, 700, 0, {"mlx5_0", 2, 3, 4, 105}}));
}

void ExpectRoundTrip(const Config& config, const TempFolder& folder) {
  const std::string text = ConfigToJson(config);
  const auto again = LoadConfig(folder.Write("elsewhere/effective.json", text));
  ASSERT_TRUE(again.ok()) << again.status().message();
  EXPECT_EQ(again->model, config.model);
  EXPECT_EQ(again->model_config, config.model_config);
  EXPECT_EQ(again->max_context, config.max_context);
  EXPECT_EQ(again->sworker, config.sworker);
  EXPECT_EQ(again->rworkers, config.rworkers);
  EXPECT_EQ(again->pipeline, config.pipeline);
  EXPECT_EQ(again->load_control, config.load_control);
  EXPECT_EQ(again->transport, config.transport);
  EXPECT_EQ(ConfigToJson(*again), text);
}

TEST_F(ConfigTest, EffectiveConfigIsTheSameConfig) {
  const TempFolder elsewhere;
  ExpectRoundTrip(*LoadWith({}), elsewhere);
  ExpectRoundTrip(*LoadWith({{"/rworkers/count", nullptr},
                             {"/rworkers/hosts", json::array({{{"address", "a:1"}, {"ssh", "u@a"}, {"bin", "/b"}},
                                                              {{"address", "b:1"}, {"kv_memory", 1073741825}},
                                                              {{"address", "c:1"}, {"kv_memory", "7%"}}})},
                             {"/model/seed", UINT64_MAX},
                             {"/rworkers/kv_dtype", {{"keys", "bf16"}, {"values", "int8"}}},
                             {"/sworker/threads", 5}}),
                  elsewhere);
}

TEST_F(ConfigTest, OneFormatForKeysAndValuesIsSaidOnce) {
  for (const char* name : {"f16", "bf16", "int8", "int4"}) {
    for (const json& value : {json(name), json({{"keys", name}, {"values", name}})}) {
      const auto config = LoadWith({{"/rworkers/kv_dtype", value}});
      ASSERT_TRUE(config.ok()) << config.status().message();
      EXPECT_EQ(config->rworkers.kv_dtype, (KvDtype{name, name}));
      EXPECT_EQ(json::parse(ConfigToJson(*config))["rworkers"]["kv_dtype"], name);
    }
  }
}

// 32 layers of 32 KV heads of 128: 2^22 elements of keys and as many of values a block of 32
// tokens, 2^15 scales of int8 and four times as many of int4.
TEST_F(ConfigTest, ABlockIsAsLargeAsItsFormat) {
  const auto needed = [&](const json& kv_dtype) {
    return LoadWith({{"/rworkers/kv_memory", "1MiB"}, {"/rworkers/block_tokens", 32}, {"/rworkers/kv_dtype", kv_dtype}})
        .status()
        .message();
  };
  EXPECT_THAT(needed("bf16"), HasSubstr(" 16777216 bytes for this model"));
  EXPECT_THAT(needed("int8"), HasSubstr(" 8519680 bytes for this model"));
  EXPECT_THAT(needed("int4"), HasSubstr(" 4718592 bytes for this model"));
  EXPECT_THAT(needed({{"keys", "int8"}, {"values", "int4"}}), HasSubstr(" 6619136 bytes for this model"));
}

TEST_F(ConfigTest, EffectiveConfigNamesEveryDocumentedKey) {
  const json effective = json::parse(ConfigToJson(*LoadWith({})));
  EXPECT_THAT(effective, SizeIs(6));
  EXPECT_THAT(effective["model"], SizeIs(7));
  EXPECT_THAT(effective["sworker"], SizeIs(4));
  EXPECT_THAT(effective["rworkers"], SizeIs(6));
  EXPECT_THAT(effective["pipeline"], SizeIs(3));
  EXPECT_THAT(effective["load_control"], SizeIs(3));
  EXPECT_THAT(effective["transport"], SizeIs(6));
  EXPECT_EQ(effective["load_control"]["workload_limit"], "auto");
}

TEST_F(ConfigTest, ShippedConfigsAreValid) {
  const TempFolder elsewhere;
  for (const char* name : {"demo", "bench-llama7b-2layers", "paper-a10-8sockets"}) {
    const auto config = LoadConfig(SourceFile(std::string("configs/") + name + ".json"));
    ASSERT_TRUE(config.ok()) << config.status().message();
    ExpectRoundTrip(*config, elsewhere);
  }
  // SmolLM2's folder is fetched, not carried: its config is valid as soon as that is there.
  const auto smollm2 = LoadConfig(SourceFile("configs/smollm2.json"));
  EXPECT_TRUE(smollm2.ok() || smollm2.status().code() == StatusCode::kNotFound) << smollm2.status().message();
}

TEST_F(ConfigTest, UnknownKeysNameTheNearest) {
  const auto message = [&](const std::string& pointer) { return MessageWith(pointer, 4); };
  EXPECT_EQ(message("/rworkers/treads"), folder_.path() +
                                             "/cluster.json: rworkers.treads: unknown key, found with value 4; "
                                             "nearest known key: rworkers.threads");
  EXPECT_THAT(message("/rworker"), HasSubstr("rworker: unknown key, found with value 4; nearest known key: rworkers"));
  EXPECT_THAT(message("/model/max_contxt"), HasSubstr("nearest known key: model.max_context"));
  EXPECT_THAT(message("/sworker/Device"), HasSubstr("nearest known key: sworker.device"));
  EXPECT_THAT(message("/pipeline/mini_batch"), HasSubstr("nearest known key: pipeline.mini_batches"));
  EXPECT_THAT(message("/load_control/enable"), HasSubstr("nearest known key: load_control.enabled"));
  EXPECT_THAT(message("/transport/secret_path"), HasSubstr("nearest known key: transport.secret_file"));
  // A wrong name of a required key is told as such, not as the key that is missing.
  EXPECT_THAT(LoadWith({{"/model/path", nullptr}, {"/model/pth", "model"}}).status().message(),
              HasSubstr("model.pth: unknown key, found with value \"model\"; nearest known key: model.path"));
  const json host = {{"address", "a:1"}, {"thread", 1}};
  EXPECT_THAT(LoadWith({{"/rworkers/count", nullptr}, {"/rworkers/hosts", json::array({host})}}).status().message(),
              HasSubstr("rworkers.hosts[0].thread: unknown key, found with value 1; nearest known key: "
                        "rworkers.hosts[0].threads"));
}

struct BadValue {
  const char* pointer;
  const char* value;  // JSON
  const char* message;
};

class ConfigBadValue : public ConfigTest, public testing::WithParamInterface<BadValue> {};

TEST_P(ConfigBadValue, IsOneClearError) {
  const auto config = LoadWith({{GetParam().pointer, json::parse(GetParam().value)}});
  ASSERT_FALSE(config.ok());
  EXPECT_THAT(config.status().message(),
              AllOf(StartsWith(folder_.path() + "/cluster.json: "), HasSubstr(GetParam().message)));
}

INSTANTIATE_TEST_SUITE_P(
    Values, ConfigBadValue,
    testing::Values(
        BadValue{"/model", "[]", "model: found []; expected an object"},
        BadValue{"/model/path", "null", "model.path: is missing"},
        BadValue{"/model/path", "\"none\"", "/none: no such folder"},
        BadValue{"/model/path", "7", "model.path: found 7; expected a string"},
        BadValue{"/model/dtype", "\"bf61\"", "nearest: \"bf16\""},
        BadValue{"/model/dtype", "\"int8\"", "model.dtype: \"int8\" is not in this build"},
        BadValue{"/model/weights", "\"rand\"", "nearest: \"random\""},
        BadValue{"/model/layers", "33", "model.layers: found 33; expected at most the 32"},
        BadValue{"/model/layers", "0", "model.layers: found 0"}, BadValue{"/model/seed", "-1", "model.seed: found -1"},
        BadValue{"/model/shape", "\"32x32x8x128\"", "or that of the layers in use, \"32x32x32x128\""},
        BadValue{"/model/max_context", "4097", "max_position_embeddings, 4096"},
        BadValue{"/model/max_context", "99999999999999999999", "model.max_context: found 1e+20"},
        BadValue{"/sworker/device", "\"gpu\"", "sworker.device: found \"gpu\"; expected \"cpu\" or \"cuda:N\""},
        BadValue{"/sworker/device", "\"cuda\"", "sworker.device: found \"cuda\""},
        BadValue{"/sworker/device", "\"cuda:-1\"", "sworker.device"},
        BadValue{"/sworker/threads", "\"all\"", "sworker.threads: found \"all\"; expected \"auto\" or a whole number"},
        BadValue{"/sworker/threads", "0", "sworker.threads: found 0"},
        BadValue{"/sworker/threads", "1.5", "sworker.threads: found 1.5"},
        BadValue{"/sworker/listen", "\"127.0.0.1:7100\"", "is not tcp://HOST:PORT"},
        BadValue{"/rworkers", "{}", "found neither \"count\" and \"hosts\""},
        BadValue{"/rworkers/hosts", "[{\"address\": \"a:1\"}]", "found both \"count\" and \"hosts\""},
        BadValue{"/rworkers/count", "0", "rworkers.count: found 0"},
        BadValue{"/rworkers/count", "true", "rworkers.count: found true"},
        BadValue{"/rworkers/kv_memory", "\"8GB\"", "rworkers.kv_memory: found \"8GB\""},
        BadValue{"/rworkers/kv_memory", "1.5", "rworkers.kv_memory: found 1.5"},
        BadValue{"/rworkers/kv_memory", "\"0%\"", "rworkers.kv_memory: found \"0%\""},
        BadValue{"/rworkers/kv_memory", "\"96%\"", "or a share of the free memory from \"1%\" to \"95%\""},
        BadValue{"/rworkers/kv_memory", "\"80 %\"", "rworkers.kv_memory: found \"80 %\""},
        BadValue{"/rworkers/kv_memory", "\"60%\"",
                 "kv_memory of the R-workers of this host is 120% of its free memory in all; expected at most 95%"},
        BadValue{"/rworkers/kv_memory", "\"1MiB\"",
                 "expected at least one block of 128 tokens in all layers, 67108864 b"},
        BadValue{"/rworkers/block_tokens", "16", "block_tokens: found 16; expected a whole number from 32 to 1024"},
        BadValue{"/rworkers/block_tokens", "48", "block_tokens: found 48; expected a power of two from 32"},
        BadValue{
            "/rworkers/kv_dtype", "\"fp8\"",
            "rworkers.kv_dtype: \"fp8\" is not in this build; expected one of \"f16\", \"bf16\", \"int8\", \"int4\""},
        BadValue{"/rworkers/kv_dtype", "\"itn8\"", "rworkers.kv_dtype: found \"itn8\"; expected one of "},
        BadValue{"/rworkers/kv_dtype", "\"in8\"", "nearest: \"int8\""},
        BadValue{"/rworkers/kv_dtype", "8", "rworkers.kv_dtype: found 8; expected one of "},
        BadValue{"/rworkers/kv_dtype", R"({"keys": "int8"})", "rworkers.kv_dtype.values: is missing"},
        BadValue{"/rworkers/kv_dtype", R"({"keys": "int8", "values": "nt4"})",
                 "rworkers.kv_dtype.values: found \"nt4\"; expected one of \"f16\", \"bf16\", \"int8\", \"int4\"; "
                 "nearest: \"int4\""},
        BadValue{
            "/rworkers/kv_dtype", R"({"key": "int8", "values": "int4"})",
            "rworkers.kv_dtype.key: unknown key, found with value \"int8\"; nearest known key: rworkers.kv_dtype.keys"},
        BadValue{"/pipeline/mini_batches", "0", "pipeline.mini_batches: found 0"},
        BadValue{"/pipeline/max_batch", "1", "2 mini-batches cannot share max_batch = 1"},
        BadValue{"/load_control/enabled", "\"on\"", "load_control.enabled: found \"on\"; expected true or false"},
        BadValue{"/load_control/workload_limit", "-1", "load_control.workload_limit: found -1"},
        BadValue{"/transport/kind", "\"udp\"",
                 "transport.kind: found \"udp\"; expected one of \"auto\", \"tcp\", \"shm\", \"verbs\""},
        BadValue{"/transport/spin_us", "1001", "transport.spin_us: found 1001"},
        BadValue{"/transport/secret_file", "\"\"", "transport.secret_file: found \"\""},
        BadValue{"/transport/verbs/port", "0", "transport.verbs.port: found 0; expected a whole number from 1 to 255"},
        BadValue{"/transport/verbs/gid_index", "-1", "transport.verbs.gid_index: found -1"},
        BadValue{"/transport/verbs/traffic_class", "256", "expected a whole number from 0 to 255"},
        BadValue{"/transport/peer_timeout_ms", "999", "expected at least twice heartbeat_ms, 1000"}));

class ConfigBadHosts : public ConfigTest, public testing::WithParamInterface<BadValue> {};

TEST_P(ConfigBadHosts, IsOneClearError) {
  const auto config = LoadWith({{"/rworkers/count", nullptr}, {"/rworkers/hosts", json::parse(GetParam().value)}});
  ASSERT_FALSE(config.ok());
  EXPECT_THAT(config.status().message(), HasSubstr(GetParam().message));
}

INSTANTIATE_TEST_SUITE_P(
    Values, ConfigBadHosts,
    testing::Values(
        BadValue{"", "[]", "rworkers.hosts: found []; expected a list of 1 to 256"},
        BadValue{"", "{}", "rworkers.hosts: found {}"},
        BadValue{"", "[7]", "rworkers.hosts[0]: found 7; expected an object"},
        BadValue{"", "[{}]", "rworkers.hosts[0].address: is missing"},
        BadValue{"", R"([{"address": "::1:7200"}])", "rworkers.hosts[0].address: \"::1:7200\" is not HOST:PORT"},
        BadValue{"", R"([{"address": "a:0"}])", "rworkers.hosts[0].address: found \"a:0\""},
        BadValue{"", R"([{"address": "0.0.0.0:1"}])", "rworkers.hosts[0].address: found \"0.0.0.0:1\""},
        BadValue{"", R"([{"address": "a:1"}, {"address": "a:1"}])", "rworkers.hosts[1].address: \"a:1\" is also"},
        BadValue{"", R"([{"address": "[::1]:1"}, {"address": "b:1"}, {"address": "[::1]:1"}])", "hosts[2].address"},
        BadValue{"", R"([{"address": "127.0.0.1:7100"}])", "is also sworker.listen"},
        BadValue{"", R"([{"address": "a:1", "ssh": "-oProxyCommand=x"}])", "rworkers.hosts[0].ssh"},
        BadValue{"", R"([{"address": "a:1", "bin": "build/bin"}])", "rworkers.hosts[0].bin"},
        BadValue{"", R"([{"address": "a:1", "listen": "a:0"}])", "rworkers.hosts[0].listen"},
        BadValue{"", R"([{"address": "a:1", "ssh": "m", "kv_memory": "50%"}, {"address": "b:1", "kv_memory": "80%"},
                         {"address": "a:2", "ssh": "m", "kv_memory": "46%"}])",
                 "reached by ssh m is 96% of its free memory"},
        BadValue{"", R"([{"address": "a:1", "kv_memory": "1MiB"}])", "rworkers.hosts[0].kv_memory: found 1MiB"}));

TEST_F(ConfigTest, BrokenJsonIsLocated) {
  const auto message = [&](const std::string& text) { return LoadText(text).status().message(); };
  EXPECT_THAT(message("{\n  \"model\": {,}\n}"), HasSubstr("cluster.json: parse error at line 2, column 13"));
  EXPECT_THAT(message("{\"model\": {}}\n garbage"), HasSubstr("parse error at line 2, column 2"));
  EXPECT_THAT(message("{\n \"model\": {\"path\": \"a\",\n  \"path\": \"b\"}}"),
              HasSubstr("line 3, column 8: key \"path\" is given twice"));
  EXPECT_THAT(message("{\"model\": {}, \"sworker\": {}, \"model\": {}}"),
              HasSubstr("line 1, column 36: key \"model\" is given twice"));
  EXPECT_THAT(message(""), HasSubstr("parse error at line 1, column 1"));
  EXPECT_THAT(message("[]"), HasSubstr("found []; expected an object"));
  EXPECT_THAT(message(std::string(100000, '[')), HasSubstr("parse error"));
  EXPECT_THAT(message(std::string(100, '[') + std::string(100, ']')), HasSubstr("nested deeper than 64 levels"));
  EXPECT_THAT(message("{\"a\": \"\xff\"}"), HasSubstr("parse error at line 1"));
  EXPECT_THAT(message(std::string((1 << 20) + 1, ' ')), HasSubstr("larger than 1 MiB"));
}

TEST_F(ConfigTest, AutomaticThreadsAreWhatTheRWorkersOfThisHostLeave) {
  cpu_set_t allowed;
  ASSERT_EQ(sched_getaffinity(0, sizeof(allowed), &allowed), 0);
  const int cpus = CPU_COUNT(&allowed);
  const auto hosts = [](int here, int elsewhere) {
    return json::array(
        {{{"address", "a:1"}, {"threads", here}}, {{"address", "b:1"}, {"threads", elsewhere}, {"ssh", "b"}}});
  };
  const auto threads = [&](const json& list) {
    return SWorkerThreads(*LoadWith({{"/rworkers/count", nullptr}, {"/rworkers/hosts", list}}));
  };
  EXPECT_EQ(threads(hosts(1, 500)), std::max(cpus - 1, 1));
  EXPECT_EQ(threads(hosts(4096, 1)), 1);
  EXPECT_EQ(SWorkerThreads(*LoadWith({{"/sworker/threads", 7}})), 7);
}

TEST_F(ConfigTest, SameKeyInTwoObjectsIsNoDuplicate) {
  EXPECT_TRUE(LoadWith({{"/sworker/threads", 1}, {"/rworkers/threads", 1}}).ok());
}

TEST_F(ConfigTest, MissingFilesAreNotFound) {
  EXPECT_EQ(LoadConfig(folder_.path() + "/none.json").status().code(), StatusCode::kNotFound);
  EXPECT_THAT(LoadConfig(folder_.path()).status().message(), HasSubstr("expected a JSON file"));
  EXPECT_EQ(LoadWith({{"/model/path", "none"}}).status().code(), StatusCode::kNotFound);
}

}  // namespace
}  // namespace fastdecode
