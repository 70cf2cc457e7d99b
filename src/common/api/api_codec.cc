#include "common/api/api_codec.h"

#include <limits>

#include "common/api/field_reader.h"
#include "common/api/msgpack.h"
#include "common/config/json_reader.h"

namespace fastdecode {
namespace {

using nlohmann::json;
using Need = FieldReader::Need;

constexpr uint64_t kMaxId = std::numeric_limits<int64_t>::max();
constexpr uint64_t kMaxSeed = std::numeric_limits<uint64_t>::max();
constexpr int64_t kMaxInt64 = std::numeric_limits<int64_t>::max();
constexpr int64_t kMaxInt32 = std::numeric_limits<int32_t>::max();
constexpr int64_t kMinInt32 = std::numeric_limits<int32_t>::min();
constexpr size_t kMaxTextBytes = 4096;
constexpr size_t kMaxNameBytes = 128;
constexpr size_t kMaxColumn = size_t{1} << 20;

// --- from a client ---

Status Read(const json& map, HelloMessage& out) {
  FieldReader reader(map, "hello");
  reader.Int("protocol", 0, kMaxInt32, &out.protocol, Need::kRequired);
  reader.Text("client", kMaxNameBytes, &out.client);
  return reader.Finish();
}

Status Read(const json& map, SubmitMessage& out) {
  FieldReader reader(map, "submit");
  reader.Unsigned("id", kMaxId, &out.id, Need::kRequired);
  reader.List("prompt", 0, kMaxInt32, kApiMaxPromptTokens, &out.prompt, Need::kRequired);
  reader.Int("max_tokens", kMinInt32, kMaxInt64, &out.max_tokens);
  reader.Number("temperature", &out.temperature);
  reader.Int("top_k", kMinInt32, kMaxInt32, &out.top_k);
  reader.Number("top_p", &out.top_p);
  if (map.contains("seed")) reader.Unsigned("seed", kMaxSeed, &out.seed.emplace());
  reader.Known("seed");
  reader.List("stop_ids", 0, kMaxInt32, kApiMaxStopIds, &out.stop_ids);
  reader.Bool("ignore_eos", &out.ignore_eos);
  reader.Bool("logprobs", &out.logprobs);
  reader.Bool("stream", &out.stream);
  return reader.Finish();
}

Status Read(const json& map, CancelMessage& out) {
  FieldReader reader(map, "cancel");
  reader.Unsigned("id", kMaxId, &out.id, Need::kRequired);
  return reader.Finish();
}

Status Read(const json& map, StatsMessage& out) {
  FieldReader reader(map, "stats");
  reader.Bool("reset", &out.reset);
  return reader.Finish();
}

// --- from a server ---

Status Read(const json& map, ServerInfo& out) {
  FieldReader reader(map, "server");
  int protocol = 0;
  reader.Int("protocol", kApiProtocol, kApiProtocol, &protocol, Need::kRequired);
  reader.Text("version", kMaxNameBytes, &out.version);
  reader.Text("model_path", kMaxTextBytes, &out.model_path);
  reader.Text("model_type", kMaxNameBytes, &out.model_type);
  reader.Int("vocab_size", 1, kMaxInt32, &out.vocab_size, Need::kRequired);
  reader.Int("max_context", 1, kMaxInt32, &out.max_context, Need::kRequired);
  reader.Int("max_batch", 0, kMaxInt32, &out.max_batch);
  reader.Int("bos_token_id", -1, kMaxInt32, &out.bos_token_id);
  reader.List("eos_token_ids", kApiMaxStopIds, &out.eos_token_ids);
  return reader.Finish();
}

Status Read(const json& map, AcceptedMessage& out) {
  FieldReader reader(map, "accepted");
  reader.Unsigned("id", kMaxId, &out.id, Need::kRequired);
  reader.Unsigned("seed", kMaxSeed, &out.seed);
  reader.Int("max_tokens", 0, kMaxInt64, &out.max_tokens);
  return reader.Finish();
}

Status Read(const json& map, TokensMessage& out) {
  FieldReader reader(map, "tokens");
  reader.List("ids", kMaxColumn, &out.ids);
  reader.List("tokens", kMinInt32, kMaxInt32, kMaxColumn, &out.tokens, Need::kRequired);
  reader.List("logprobs", kMaxColumn, &out.logprobs);
  FD_RETURN_IF_ERROR(reader.Finish());
  if (out.ids.size() != out.tokens.size() || (!out.logprobs.empty() && out.logprobs.size() != out.ids.size())) {
    return InvalidArgument("tokens: the columns differ in length");
  }
  return OkStatus();
}

Status Read(const json& map, FinishedMessage& out) {
  FieldReader reader(map, "finished");
  reader.Unsigned("id", kMaxId, &out.id, Need::kRequired);
  reader.Text("finish_reason", kMaxNameBytes, &out.finish_reason, Need::kRequired);
  reader.Int("prompt_tokens", 0, kMaxInt32, &out.prompt_tokens);
  reader.List("token_ids", kMinInt32, kMaxInt32, kMaxColumn, &out.token_ids);
  if (map.contains("logprobs")) {
    std::vector<std::optional<float>> column;
    reader.List("logprobs", kMaxColumn, &column);
    std::vector<float>& logprobs = out.logprobs.emplace();
    for (const auto& value : column) logprobs.push_back(value.value_or(0.0f));
  }
  reader.Unsigned("seed", kMaxSeed, &out.seed);
  reader.Known("error");
  FD_RETURN_IF_ERROR(reader.Finish());
  if (map.contains("error")) {
    FieldReader error(map["error"], "finished.error");
    error.Text("code", kMaxNameBytes, &out.error_code, Need::kRequired);
    error.Text("message", kMaxTextBytes, &out.error_message);
    return error.Finish();
  }
  return OkStatus();
}

Status Read(const json& map, StatsReply& out) {
  FieldReader reader(map, "stats");
  reader.Known("stats");
  FD_RETURN_IF_ERROR(reader.Finish());
  out.stats = map.value("stats", json::object());
  if (!out.stats.is_object()) return InvalidArgument("stats: a map is expected");
  return OkStatus();
}

Status Read(const json& map, HeartbeatMessage&) { return FieldReader(map, "heartbeat").Finish(); }

Status Read(const json& map, ErrorMessage& out) {
  FieldReader reader(map, "error");
  reader.Text("code", kMaxNameBytes, &out.code, Need::kRequired);
  reader.Text("message", kMaxTextBytes, &out.message);
  if (map.contains("id")) reader.Unsigned("id", kMaxId, &out.id.emplace());
  reader.Known("id");
  return reader.Finish();
}

// Reads `map` as a T into `out`, a variant that can hold one.
template <typename T, typename Variant>
Status ReadAs(const json& map, Variant& out) {
  return Read(map, out.template emplace<T>());
}

// Parses the bytes and checks that they are a map with a "type".
Result<json> ParseTyped(std::span<const uint8_t> bytes) {
  FD_ASSIGN_OR_RETURN(json map, ParseMsgpack(bytes));
  if (!map.is_object()) return DataLoss("a message must be a map, found " + std::string(map.type_name()));
  const auto type = map.find("type");
  if (type == map.end() || !type->is_string()) return DataLoss("a message must have a string field 'type'");
  return map;
}

Status UnknownType(const std::string& type, const std::vector<std::string>& known) {
  return InvalidArgument("unknown message type '" + Printable(type) + "'; the nearest known one is '" +
                         Nearest(type.substr(0, 60), known) + "'");
}

json Typed(const char* type) { return json{{"type", type}}; }

}  // namespace

std::variant<ClientMessage, MalformedMessage> DecodeClientMessage(std::span<const uint8_t> bytes) {
  Result<json> parsed = ParseTyped(bytes);
  if (!parsed.ok()) return MalformedMessage{std::nullopt, parsed.status().message()};
  const json& map = *parsed;
  const auto& type = map["type"].get_ref<const std::string&>();
  ClientMessage message;
  Status status = type == "submit"   ? ReadAs<SubmitMessage>(map, message)
                  : type == "cancel" ? ReadAs<CancelMessage>(map, message)
                  : type == "hello"  ? ReadAs<HelloMessage>(map, message)
                  : type == "stats"  ? ReadAs<StatsMessage>(map, message)
                                     : UnknownType(type, {"hello", "submit", "cancel", "stats"});
  if (status.ok()) return message;
  MalformedMessage malformed{std::nullopt, status.message()};
  const auto id = map.find("id");
  if (type == "submit" && id != map.end() && id->is_number_unsigned() && id->get<uint64_t>() <= kMaxId) {
    malformed.submit_id = id->get<uint64_t>();
  }
  return malformed;
}

Result<ServerMessage> DecodeServerMessage(std::span<const uint8_t> bytes) {
  FD_ASSIGN_OR_RETURN(const json map, ParseTyped(bytes));
  const auto& type = map["type"].get_ref<const std::string&>();
  ServerMessage message;
  const Status status =
      type == "tokens"      ? ReadAs<TokensMessage>(map, message)
      : type == "finished"  ? ReadAs<FinishedMessage>(map, message)
      : type == "accepted"  ? ReadAs<AcceptedMessage>(map, message)
      : type == "heartbeat" ? ReadAs<HeartbeatMessage>(map, message)
      : type == "stats"     ? ReadAs<StatsReply>(map, message)
      : type == "server"    ? ReadAs<ServerInfo>(map, message)
      : type == "error"
          ? ReadAs<ErrorMessage>(map, message)
          : UnknownType(type, {"server", "accepted", "tokens", "finished", "stats", "heartbeat", "error"});
  if (!status.ok()) return status;
  return message;
}

void Encode(const HelloMessage& message, std::vector<uint8_t>& out) {
  json map = Typed("hello");
  map["protocol"] = message.protocol;
  if (!message.client.empty()) map["client"] = message.client;
  AppendMsgpack(map, out);
}

void Encode(const SubmitMessage& message, std::vector<uint8_t>& out) {
  json map = Typed("submit");
  map["id"] = message.id;
  map["prompt"] = message.prompt;
  map["max_tokens"] = message.max_tokens;
  map["temperature"] = message.temperature;
  map["top_k"] = message.top_k;
  map["top_p"] = message.top_p;
  if (message.seed) map["seed"] = *message.seed;
  map["stop_ids"] = message.stop_ids;
  map["ignore_eos"] = message.ignore_eos;
  map["logprobs"] = message.logprobs;
  map["stream"] = message.stream;
  AppendMsgpack(map, out);
}

void Encode(const CancelMessage& message, std::vector<uint8_t>& out) {
  json map = Typed("cancel");
  map["id"] = message.id;
  AppendMsgpack(map, out);
}

void Encode(const StatsMessage& message, std::vector<uint8_t>& out) {
  json map = Typed("stats");
  map["reset"] = message.reset;
  AppendMsgpack(map, out);
}

void Encode(const ServerInfo& message, std::vector<uint8_t>& out) {
  json map = Typed("server");
  map["protocol"] = kApiProtocol;
  map["version"] = message.version;
  map["model_path"] = message.model_path;
  map["model_type"] = message.model_type;
  map["vocab_size"] = message.vocab_size;
  map["max_context"] = message.max_context;
  map["max_batch"] = message.max_batch;
  map["bos_token_id"] = message.bos_token_id;
  map["eos_token_ids"] = message.eos_token_ids;
  AppendMsgpack(map, out);
}

void Encode(const AcceptedMessage& message, std::vector<uint8_t>& out) {
  json map = Typed("accepted");
  map["id"] = message.id;
  map["seed"] = message.seed;
  map["max_tokens"] = message.max_tokens;
  AppendMsgpack(map, out);
}

void Encode(const TokensMessage& message, std::vector<uint8_t>& out) {
  json map = Typed("tokens");
  map["ids"] = message.ids;
  map["tokens"] = message.tokens;
  if (!message.logprobs.empty()) {
    json& column = map["logprobs"] = json::array();
    for (const auto& value : message.logprobs) column.push_back(value ? json(*value) : json());
  }
  AppendMsgpack(map, out);
}

void Encode(const FinishedMessage& message, std::vector<uint8_t>& out) {
  json map = Typed("finished");
  map["id"] = message.id;
  map["finish_reason"] = message.finish_reason;
  map["prompt_tokens"] = message.prompt_tokens;
  map["token_ids"] = message.token_ids;
  if (message.logprobs) map["logprobs"] = *message.logprobs;
  map["seed"] = message.seed;
  if (!message.error_code.empty()) {
    map["error"] = json{{"code", message.error_code}, {"message", message.error_message}};
  }
  AppendMsgpack(map, out);
}

void Encode(const StatsReply& message, std::vector<uint8_t>& out) {
  json map = Typed("stats");
  map["stats"] = message.stats;
  AppendMsgpack(map, out);
}

void Encode(const HeartbeatMessage&, std::vector<uint8_t>& out) { AppendMsgpack(Typed("heartbeat"), out); }

void Encode(const ErrorMessage& message, std::vector<uint8_t>& out) {
  json map = Typed("error");
  map["code"] = message.code;
  map["message"] = message.message;
  if (message.id) map["id"] = *message.id;
  AppendMsgpack(map, out);
}

}  // namespace fastdecode
