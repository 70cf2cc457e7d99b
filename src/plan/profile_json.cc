// The JSON of profile.h, both ways.
#include <cmath>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "common/config/json_file.h"
#include "common/config/json_reader.h"
#include "kernels/kv_codecs.h"
#include "plan/performance_model.h"
#include "plan/profile.h"

namespace fastdecode::plan {
namespace {

using nlohmann::json;
using Ordered = nlohmann::ordered_json;

// Bounds of what a part of a computer can take: beyond them a number is a mistake.
constexpr double kMinSeconds = 1e-10;
constexpr double kMaxSeconds = 3600;
constexpr double kMaxTokenSeconds = 1;  // of one cached token in one layer
constexpr double kMaxSpread = 1000;
constexpr double kMaxAt = 1e12;
constexpr size_t kMaxPoints = 1000;
constexpr size_t kMaxEntries = 256;

std::string Index(const std::string& path, size_t i) { return path + "[" + std::to_string(i) + "]"; }

Ordered CurveToJson(const Curve& curve, const char* unit) {
  Ordered list = Ordered::array();
  for (const TimePoint& point : curve.points()) {
    list.push_back({{unit, point.at}, {"seconds", point.seconds}, {"spread", point.spread}});
  }
  return list;
}

Status ReadPoint(const json& object, const std::string& path, const char* unit, TimePoint* point) {
  ObjectReader reader(object, path);
  reader.Require(unit);
  reader.Number(unit, 1, kMaxAt, &point->at);
  reader.Require("seconds");
  reader.Number("seconds", kMinSeconds, kMaxSeconds, &point->seconds);
  reader.Number("spread", 0, kMaxSpread, &point->spread);
  return reader.Finish();
}

void ReadCurve(ObjectReader& owner, const std::string& key, const char* unit, bool required, Curve* curve) {
  if (required) owner.Require(key);
  const json* list = owner.Find(key);
  if (list == nullptr) return;
  if (!list->is_array() || list->size() > kMaxPoints || (required && list->empty())) {
    return owner.Expected(key, std::string("a list of ") + (required ? "1" : "0") + " to 1000 objects with \"" + unit +
                                   "\" and \"seconds\"");
  }
  std::vector<TimePoint> points(list->size());
  for (size_t i = 0; i < points.size(); ++i) {
    const std::string path = Index(owner.PathOf(key), i);
    owner.Adopt(ReadPoint((*list)[i], path, unit, &points[i]));
    if (!owner.status().ok()) return;
    if (i > 0 && points[i].at <= points[i - 1].at) {
      return owner.Adopt(InvalidArgument(path + "." + unit + ": found " + json(points[i].at).dump() +
                                         "; expected more than the " + json(points[i - 1].at).dump() +
                                         " of the point before it"));
    }
  }
  *curve = Curve(std::move(points));
}

Ordered KeyToJson(const ModelKey& key) {
  return {{"hidden_size", key.hidden_size},
          {"intermediate_size", key.intermediate_size},
          {"vocab_size", key.vocab_size},
          {"num_heads", key.num_heads},
          {"num_kv_heads", key.num_kv_heads},
          {"head_dim", key.head_dim},
          {"dtype", key.dtype},
          {"device", key.device},
          {"threads", key.threads},
          {"kv_keys", key.kv_keys},
          {"kv_values", key.kv_values},
          {"transport", key.transport}};
}

Status ReadKey(const json& object, const std::string& path, ModelKey* key) {
  ObjectReader reader(object, path);
  constexpr int64_t kMaxWidth = int64_t{1} << 24;
  for (const char* name : {"hidden_size", "intermediate_size", "vocab_size", "num_heads", "num_kv_heads", "head_dim",
                           "dtype", "device", "kv_keys", "kv_values", "transport"}) {
    reader.Require(name);
  }
  reader.Integer("hidden_size", 1, kMaxWidth, &key->hidden_size);
  reader.Integer("intermediate_size", 1, kMaxWidth, &key->intermediate_size);
  reader.Integer("vocab_size", 1, kMaxWidth, &key->vocab_size);
  reader.Integer("num_heads", 1, kMaxHeads, &key->num_heads);
  reader.Integer("num_kv_heads", 1, kMaxHeads, &key->num_kv_heads);
  reader.Integer("head_dim", 1, kMaxHeadDim, &key->head_dim);
  reader.Choice("dtype", {"f32", "f16", "bf16"}, {}, &key->dtype);
  reader.Choice("device", {"cpu", "cuda"}, {}, &key->device);
  reader.Integer("threads", 0, 4096, &key->threads);
  reader.Choice("kv_keys", kernels::FormatNames(), {}, &key->kv_keys);
  reader.Choice("kv_values", kernels::FormatNames(), {}, &key->kv_values);
  reader.Choice("transport", {"any", "shm", "shm+tcp", "shm+tcp+verbs", "shm+verbs", "tcp", "tcp+verbs", "verbs"}, {},
                &key->transport);
  if (key->num_kv_heads > 0 && key->num_heads % key->num_kv_heads != 0) {
    reader.Expected("num_kv_heads", "a divisor of num_heads, " + std::to_string(key->num_heads));
  }
  return reader.Finish();
}

Ordered AttendedToJson(const std::vector<AttendCurve>& attended) {
  Ordered list = Ordered::array();
  for (const AttendCurve& curve : attended) {
    list.push_back({{"rows", curve.rows}, {"times", CurveToJson(curve.by_cached, "cached")}});
  }
  return list;
}

void ReadAttended(ObjectReader& owner, std::vector<AttendCurve>* attended) {
  const json* list = owner.Find("attended");
  if (list == nullptr) return;
  if (!list->is_array() || list->size() > kMaxPoints) {
    return owner.Expected("attended", "a list of 0 to 1000 objects with \"rows\" and \"times\"");
  }
  for (size_t i = 0; i < list->size() && owner.status().ok(); ++i) {
    AttendCurve& curve = attended->emplace_back();
    ObjectReader reader((*list)[i], Index(owner.PathOf("attended"), i));
    reader.Require("rows");
    reader.Number("rows", 1, kMaxAt, &curve.rows);
    ReadCurve(reader, "times", "cached", true, &curve.by_cached);
    if (i > 0 && curve.rows <= (*attended)[i - 1].rows) reader.Expected("rows", "more than those of the entry before");
    owner.Adopt(reader.Finish());
  }
}

Ordered RWorkerToJson(const RWorkerProfile& rworker) {
  Ordered object = Ordered::object();
  if (!rworker.address.empty()) object["address"] = rworker.address;
  if (!rworker.kernel.empty()) object["kernel"] = rworker.kernel;
  object.update({{"threads", rworker.threads},
                 {"seconds_per_token", rworker.attend.seconds_per_token},
                 {"seconds_per_row", rworker.attend.seconds_per_row},
                 {"seconds_per_call", rworker.attend.seconds_per_call},
                 {"spread", rworker.attend.spread},
                 {"attended", AttendedToJson(rworker.attended)},
                 {"wire", CurveToJson(rworker.wire, "bytes")}});
  return object;
}

Status ReadRWorker(const json& object, const std::string& path, RWorkerProfile* rworker) {
  ObjectReader reader(object, path);
  reader.Text("address", &rworker->address);
  reader.Text("kernel", &rworker->kernel);
  reader.Integer("threads", 0, 4096, &rworker->threads);
  reader.Require("seconds_per_token");
  reader.Number("seconds_per_token", 1e-14, kMaxTokenSeconds, &rworker->attend.seconds_per_token);
  reader.Number("seconds_per_row", 0, kMaxTokenSeconds, &rworker->attend.seconds_per_row);
  reader.Number("seconds_per_call", 0, kMaxTokenSeconds, &rworker->attend.seconds_per_call);
  reader.Number("spread", 0, kMaxSpread, &rworker->attend.spread);
  ReadAttended(reader, &rworker->attended);
  ReadCurve(reader, "wire", "bytes", false, &rworker->wire);
  return reader.Finish();
}

// What no device and no memory reaches: such a time is of another model, or a mistake.
Status CheckSpeeds(const ModelProfile& model, const std::string& path) {
  constexpr double kMaxFlops = 1e17, kMaxBytesPerSecond = 1e15;
  const std::vector<TimePoint>& layer = model.layer.points();
  for (size_t i = 0; i < layer.size(); ++i) {
    const double flops = 2 * layer[i].at * static_cast<double>(LayerParameters(model.key)) / layer[i].seconds;
    if (flops <= kMaxFlops) continue;
    return InvalidArgument(Index(path + ".layer", i) + ".seconds: found " + json(layer[i].seconds).dump() +
                           ", which would be " + json(flops).dump() + " FLOP/s for this shape; expected at most 1e17");
  }
  for (size_t i = 0; i < model.rworkers.size(); ++i) {
    const double seconds = model.rworkers[i].attend.seconds_per_token;
    const auto bytes = static_cast<double>(KvTokenBytes(model.key));
    const auto too_fast = [](const std::string& key, double found, double rate) {
      return InvalidArgument(key + ": found " + json(found).dump() + ", which would be " + json(rate).dump() +
                             " bytes/s for this shape; expected at most 1e15");
    };
    const std::string rworker = Index(path + ".rworkers", i);
    if (bytes / seconds > kMaxBytesPerSecond) return too_fast(rworker + ".seconds_per_token", seconds, bytes / seconds);
    for (size_t c = 0; c < model.rworkers[i].attended.size(); ++c) {
      const AttendCurve& curve = model.rworkers[i].attended[c];
      const std::vector<TimePoint>& points = curve.by_cached.points();
      for (size_t p = 0; p < points.size(); ++p) {
        const double rate = curve.rows * points[p].at * bytes / points[p].seconds;
        if (rate <= kMaxBytesPerSecond) continue;
        return too_fast(Index(Index(rworker + ".attended", c) + ".times", p) + ".seconds", points[p].seconds, rate);
      }
    }
  }
  return OkStatus();
}

Ordered ModelToJson(const ModelProfile& model) {
  Ordered rworkers = Ordered::array();
  for (const RWorkerProfile& rworker : model.rworkers) rworkers.push_back(RWorkerToJson(rworker));
  return {{"name", model.name},
          {"key", KeyToJson(model.key)},
          {"mini_batches", model.mini_batches},
          {"layer", CurveToJson(model.layer, "rows")},
          {"copy_in", CurveToJson(model.copy_in, "rows")},
          {"copy_out", CurveToJson(model.copy_out, "rows")},
          {"outer", CurveToJson(model.outer, "rows")},
          {"serving", CurveToJson(model.serving, "rows")},
          {"prefill", CurveToJson(model.prefill, "tokens")},
          {"prefill_outer", CurveToJson(model.prefill_outer, "tokens")},
          {"rworkers", std::move(rworkers)}};
}

Status ReadModel(const json& object, const std::string& path, ModelProfile* model) {
  ObjectReader reader(object, path);
  reader.Text("name", &model->name);
  reader.Require("key");
  const json* key = reader.Find("key");
  reader.Integer("mini_batches", 0, 16, &model->mini_batches);
  ReadCurve(reader, "layer", "rows", true, &model->layer);
  ReadCurve(reader, "copy_in", "rows", false, &model->copy_in);
  ReadCurve(reader, "copy_out", "rows", false, &model->copy_out);
  ReadCurve(reader, "outer", "rows", false, &model->outer);
  ReadCurve(reader, "serving", "rows", false, &model->serving);
  ReadCurve(reader, "prefill", "tokens", false, &model->prefill);
  ReadCurve(reader, "prefill_outer", "tokens", false, &model->prefill_outer);
  reader.Require("rworkers");
  const json* rworkers = reader.Find("rworkers");
  FD_RETURN_IF_ERROR(reader.Finish());
  FD_RETURN_IF_ERROR(ReadKey(*key, reader.PathOf("key"), &model->key));
  if (!rworkers->is_array() || rworkers->empty() || rworkers->size() > kMaxEntries) {
    reader.Expected("rworkers", "a list of 1 to 256 objects");
    return reader.status();
  }
  for (size_t i = 0; i < rworkers->size(); ++i) {
    FD_RETURN_IF_ERROR(
        ReadRWorker((*rworkers)[i], Index(reader.PathOf("rworkers"), i), &model->rworkers.emplace_back()));
  }
  return CheckSpeeds(*model, path);
}

Status ReadMachine(const json& object, MachineProfile* machine) {
  ObjectReader reader(object, "machine");
  reader.Text("hostname", &machine->hostname);
  reader.Text("cpu", &machine->cpu);
  reader.Text("kernel", &machine->kernel);
  reader.Text("device", &machine->device);
  reader.Integer("cpus", 0, 1 << 16, &machine->cpus);
  reader.Integer("memory_bytes", 0, int64_t{1} << 50, &machine->memory_bytes);
  reader.Number("read_bytes_per_s", 0, 1e15, &machine->read_bytes_per_s);
  return reader.Finish();
}

Status ReadProfile(const json& document, Profile* profile) {
  ObjectReader reader(document, "");
  int schema = 0;
  reader.Require("schema");
  reader.Integer("schema", 1, 1 << 20, &schema);
  if (reader.status().ok() && schema != kProfileSchema) {
    reader.Expected("schema", std::to_string(kProfileSchema) + ", this version's: measure again");
    return reader.status();
  }
  const json* machine = reader.Find("machine");
  const json* versions = reader.Find("versions");
  reader.Number("measured_seconds", 0, 1e7, &profile->measured_seconds);
  reader.Require("models");
  const json* models = reader.Find("models");
  FD_RETURN_IF_ERROR(reader.Finish());
  if (machine != nullptr) FD_RETURN_IF_ERROR(ReadMachine(*machine, &profile->machine));
  if (versions != nullptr) {
    ObjectReader inner(*versions, "versions");
    inner.Text("fastdecode", &profile->fastdecode_version);
    inner.Text("libtorch", &profile->libtorch_version);
    FD_RETURN_IF_ERROR(inner.Finish());
  }
  if (!models->is_array() || models->empty() || models->size() > kMaxEntries) {
    reader.Expected("models", "a list of 1 to 256 objects");
    return reader.status();
  }
  for (size_t i = 0; i < models->size(); ++i) {
    FD_RETURN_IF_ERROR(ReadModel((*models)[i], Index("models", i), &profile->models.emplace_back()));
    for (size_t j = 0; j < i; ++j) {
      if (profile->models[j].key != profile->models[i].key) continue;
      return InvalidArgument(Index("models", i) + ".key: is also " + Index("models", j) +
                             "'s; expected one entry each");
    }
  }
  return OkStatus();
}

}  // namespace

Result<Profile> ParseProfile(const std::string& text, const std::string& name) {
  FD_ASSIGN_OR_RETURN(const json document, ParseJsonText(text, name));
  Profile profile;
  const Status status = ReadProfile(document, &profile);
  if (!status.ok()) return Status(status.code(), name + ": " + status.message());
  return profile;
}

Result<Profile> LoadProfile(const std::string& path) {
  FD_ASSIGN_OR_RETURN(const json document, ReadJsonFile(path));
  Profile profile;
  const Status status = ReadProfile(document, &profile);
  if (!status.ok()) return Status(status.code(), path + ": " + status.message());
  return profile;
}

std::string ProfileToJson(const Profile& profile) {
  Ordered models = Ordered::array();
  for (const ModelProfile& model : profile.models) models.push_back(ModelToJson(model));
  const MachineProfile& machine = profile.machine;
  Ordered machine_json = Ordered::object();
  const auto text = [](Ordered& object, const char* key, const std::string& value) {
    if (!value.empty()) object[key] = value;
  };
  text(machine_json, "hostname", machine.hostname);
  text(machine_json, "cpu", machine.cpu);
  text(machine_json, "kernel", machine.kernel);
  text(machine_json, "device", machine.device);
  machine_json["cpus"] = machine.cpus;
  machine_json["memory_bytes"] = machine.memory_bytes;
  machine_json["read_bytes_per_s"] = machine.read_bytes_per_s;
  Ordered versions = Ordered::object();
  text(versions, "fastdecode", profile.fastdecode_version);
  text(versions, "libtorch", profile.libtorch_version);
  const Ordered document = {{"schema", kProfileSchema},
                            {"machine", std::move(machine_json)},
                            {"versions", std::move(versions)},
                            {"measured_seconds", profile.measured_seconds},
                            {"models", std::move(models)}};
  return document.dump(1, ' ', false, Ordered::error_handler_t::replace) + "\n";
}

Status CheckProfile(const Profile& profile) { return ParseProfile(ProfileToJson(profile), "the profile").status(); }

Status SaveProfile(const Profile& profile, const std::string& path) {
  const std::string text = ProfileToJson(profile);
  if (text.size() > kMaxJsonFileBytes) {
    return Status(StatusCode::kResourceExhausted,
                  path + ": would be " + std::to_string(text.size() >> 10) +
                      " KiB, and a profile has at most 1 MiB: give fewer models or fewer R-workers (in a deployment "
                      "with more of them they are taken in turns)");
  }
  std::ofstream file(path);
  file << text;
  file.close();
  if (!file.good()) return InvalidArgument(path + ": cannot be written: " + std::strerror(errno));
  return OkStatus();
}

}  // namespace fastdecode::plan
