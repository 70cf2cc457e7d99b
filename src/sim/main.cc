// fastdecode-sim: a deployment simulated before it is there.
#include <gflags/gflags.h>

#include <cstdio>
#include <fstream>
#include <memory>
#include <sstream>

#include "common/base/logging.h"
#include "common/config/config.h"
#include "common/flags/parse_flags.h"
#include "plan/performance_model.h"
#include "plan/profile.h"
#include "sim/cluster_sim.h"
#include "sim/report.h"
#include "sim/sim_options.h"

DEFINE_string(profile, "", "times of the parts (fastdecode-plan measure); required");
DEFINE_string(model, "", "the profile's entry, by name, where it has several and there is no --config");
DEFINE_string(config, "", "take layers, context, pipeline, load control and R-workers from this deployment");
DEFINE_int32(layers, 0, "of the model (0: the config's)");
DEFINE_int32(rworkers, 0, "R-workers; the profile's in turn (0: the config's, or the profile's)");
DEFINE_int32(mini_batches, 0, "that take turns (0: the config's, or 2)");
DEFINE_int32(batch, 0, "sequences in flight at most, over all mini-batches (0: the config's)");
DEFINE_int32(max_context, 0, "tokens of the longest sequence (0: the config's, or 4096)");
DEFINE_int64(kv_tokens, 0, "that an R-worker's cache holds (0: the config's, or enough)");
DEFINE_int32(block_tokens, 0, "of a KV block (0: the config's, or 128)");
DEFINE_int32(prefill_tokens_per_step, 0, "(0: the config's, or 4096)");
DEFINE_string(load_control, "", "on or off (empty: the config's, or on)");
DEFINE_string(placement, "lowest_peak", "lowest_peak, least_loaded or round_robin");
DEFINE_int64(workload_limit, 0, "W of one R-worker (0: the config's, or auto)");
DEFINE_int32(interval_steps, 0, "between injections (0: the config's, or auto)");

DEFINE_string(trace, "", "requests of this trace: Azure CSV or Mooncake JSONL");
DEFINE_int64(requests, 0, "how many: a trace is repeated in order (0: once, or twice the batch)");
DEFINE_double(rate, 0, "with --trace: its arrivals, this many times as fast (0: all are there from the start)");
DEFINE_int32(prompt_tokens, 0, "or prompts of this length, ...");
DEFINE_int32(output_tokens, 0, "... and answers of this one");
DEFINE_int32(in_flight, 0, "keep so many requests with the S-worker, as fastdecode-bench does (0: all, as they come)");
DEFINE_double(shortest_end, 1, "sequences make a share of their tokens drawn from [this, 1]");

DEFINE_string(events, "layer", "layer: an event a (layer, R-worker); step: a (step, R-worker), for large clusters");
DEFINE_double(jitter, -1, "standard deviation of each time, as a share (-1: as the profile's repetitions spread)");
DEFINE_double(wire_on_rworker, 0.5, "share of an exchange in which the R-worker's own thread is taken (TCP; 0: RDMA)");
DEFINE_string(fail, "", "R-workers that are lost: 3@12.5+2,4@20 (3 at 12.5 s, back 2 s later; 4 for good)");
DEFINE_string(slow, "", "R-workers that slow down: 3x2.5,4x2@10+4 (4 to half its speed at 10 s, for 4 s)");
DEFINE_double(straggling, 0, "share of R-parts, drawn, that take --straggler_factor times as long");
DEFINE_double(straggler_factor, 5, "of --straggling");
DEFINE_string(measure, "0:1", "between these shares of requests ended: 0.3:0.8 leaves ramp and end out");
DEFINE_uint64(seed, 1, "of everything that is drawn");

DEFINE_string(json, "", "write the result to this file too");
DEFINE_string(trace_out, "", "write a timeline that opens in Perfetto");

namespace fastdecode::sim {
namespace {

constexpr int kExitOk = 0, kExitUsage = 2;

int Fail(const Status& status) {
  std::fprintf(stderr, "fastdecode-sim: %s\n", status.message().c_str());
  return kExitUsage;
}

struct Setting {
  plan::Profile profile;
  const plan::ModelProfile* model = nullptr;
  SimOptions sim;
  RequestOptions requests;
};

Status CheckFlags() {
  const auto share = [](double value) { return value >= 0 && value <= 1; };
  if (FLAGS_profile.empty()) return InvalidArgument("--profile FILE is required; --help lists the flags");
  const bool fixed = FLAGS_prompt_tokens > 0 && FLAGS_output_tokens > 0;
  if (FLAGS_trace.empty() && !fixed) {
    return InvalidArgument("give --prompt_tokens and --output_tokens, both above 0, or --trace");
  }
  if (!FLAGS_trace.empty() && (FLAGS_prompt_tokens != 0 || FLAGS_output_tokens != 0)) {
    return InvalidArgument("--trace has its own lengths: leave --prompt_tokens and --output_tokens out");
  }
  if (FLAGS_requests < 0 || !(FLAGS_rate >= 0) || FLAGS_in_flight < 0) {
    return InvalidArgument("--requests, --rate and --in_flight can't be negative");
  }
  if (!FLAGS_model.empty() && !FLAGS_config.empty()) {
    return InvalidArgument("--config names the model: leave --model out");
  }
  if (FLAGS_rate > 0 && FLAGS_trace.empty()) return InvalidArgument("--rate needs --trace");
  if (FLAGS_rate > 0 && FLAGS_in_flight > 0) return InvalidArgument("--rate and --in_flight exclude each other");
  if (FLAGS_events != "layer" && FLAGS_events != "step") {
    return InvalidArgument("--events is '" + FLAGS_events + "': expected layer or step");
  }
  if (FLAGS_load_control != "" && FLAGS_load_control != "on" && FLAGS_load_control != "off") {
    return InvalidArgument("--load_control is '" + FLAGS_load_control + "': expected on or off");
  }
  if (!share(FLAGS_wire_on_rworker) || !share(FLAGS_straggling) || !share(FLAGS_shortest_end)) {
    return InvalidArgument("--wire_on_rworker, --straggling and --shortest_end take a share from 0 to 1");
  }
  if (!(FLAGS_straggler_factor >= 1) || !(FLAGS_straggler_factor <= 1e6)) {
    return InvalidArgument("--straggler_factor takes a number from 1 to 1e6");
  }
  if (!(FLAGS_jitter >= 0 && FLAGS_jitter <= 2) && FLAGS_jitter != -1) {
    return InvalidArgument("--jitter takes a number from 0 to 2, or -1 for the profile's spread");
  }
  return OkStatus();
}

// The profile's entry, where no config says which.
Result<const plan::ModelProfile*> ModelByName(const plan::Profile& profile) {
  if (FLAGS_model.empty() && profile.models.size() == 1) return &profile.models.front();
  std::string names;
  const plan::ModelProfile* found = nullptr;
  for (const plan::ModelProfile& model : profile.models) {
    names += (names.empty() ? "" : ", ") + model.name;
    if (model.name != FLAGS_model) continue;
    if (found != nullptr) {
      return InvalidArgument(FLAGS_profile + " has several entries called " + FLAGS_model + " (" +
                             plan::Describe(found->key) + "; " + plan::Describe(model.key) +
                             "): give the deployment's --config");
    }
    found = &model;
  }
  if (found != nullptr) return found;
  return NotFound(FLAGS_profile + " has no model '" + FLAGS_model + "'; give --model, one of: " + names +
                  ", or the deployment's --config");
}

// The flag where it was given, else the config's value, else this.
template <typename T>
void Choose(T flag, T fallback, T* value) {
  if (flag != 0) *value = flag;
  if (*value == 0) *value = fallback;
}

void FromConfig(const Config& config, SimOptions* sim) {
  sim->scheduler.mini_batches = config.pipeline.mini_batches;
  sim->scheduler.max_batch = config.pipeline.max_batch;
  sim->scheduler.prefill_tokens_per_step = config.pipeline.prefill_tokens_per_step;
  sim->scheduler.max_context = config.max_context;
  sim->scheduler.block_tokens = config.rworkers.block_tokens;
  sim->scheduler.num_rworkers =
      config.rworkers.count > 0 ? config.rworkers.count : static_cast<int>(config.rworkers.hosts.size());
  sim->scheduler.load_control = config.load_control.enabled;
  sim->scheduler.workload_limit = config.load_control.workload_limit;
  sim->scheduler.interval_steps = config.load_control.interval_steps;
  sim->layers = config.model_config.attention.num_layers;
}

// 0 of a share of free memory.
int64_t KvBytes(const Config& config) {
  return (config.rworkers.hosts.empty() ? config.rworkers.kv_memory : config.rworkers.hosts.front().kv_memory).bytes;
}

// Mean over all points.
double Spread(const std::vector<const plan::Curve*>& curves) {
  double sum = 0;
  size_t points = 0;
  for (const plan::Curve* curve : curves) {
    for (const plan::TimePoint& point : curve->points()) sum += point.spread;
    points += curve->points().size();
  }
  return points == 0 ? 0 : sum / static_cast<double>(points);
}

// (largest - smallest) of about five repetitions is 2.33 standard deviations of a normal one.
constexpr double kDeviationsOfFive = 2.33;

Status SetJitter(const plan::ModelProfile& model, SimOptions* sim) {
  sim->device_jitter = sim->rworker_jitter = FLAGS_jitter;
  if (FLAGS_jitter >= 0) return OkStatus();
  std::vector<const plan::Curve*> attended;
  for (const plan::RWorkerProfile& rworker : model.rworkers) {
    for (const plan::AttendCurve& curve : rworker.attended) attended.push_back(&curve.by_cached);
  }
  sim->device_jitter = Spread({&model.layer}) / kDeviationsOfFive;
  sim->rworker_jitter = Spread(attended) / kDeviationsOfFive;
  if (sim->device_jitter <= 2 && sim->rworker_jitter <= 2) return OkStatus();
  return InvalidArgument(FLAGS_profile +
                         ": its repetitions spread by more than their size: measure again, or give --jitter");
}

Status SetFaults(SimOptions* sim) {
  const auto parse = [sim](const std::string& list, const char* flag, const auto& one) {
    std::istringstream parts(list);
    for (std::string part; std::getline(parts, part, ',');) {
      const Result<Fault> fault = one(part);
      if (!fault.ok()) return InvalidArgument(std::string(flag) + ": " + fault.status().message());
      if (fault->rworker >= sim->scheduler.num_rworkers) {
        return InvalidArgument(std::string(flag) + ": there is no R-worker " + std::to_string(fault->rworker) +
                               "; they are 0 to " + std::to_string(sim->scheduler.num_rworkers - 1));
      }
      sim->faults.push_back(*fault);
    }
    return OkStatus();
  };
  FD_RETURN_IF_ERROR(parse(FLAGS_fail, "--fail", ParseLoss));
  return parse(FLAGS_slow, "--slow", ParseSlowdown);
}

// What a scheduler can count with; the first flag that is not.
Status CheckRanges(const SimOptions& sim) {
  const SchedulerOptions& scheduler = sim.scheduler;
  const auto check = [](const char* flag, int64_t value, int64_t min, int64_t max) {
    if (value >= min && value <= max) return OkStatus();
    return InvalidArgument(std::string("--") + flag + " is " + std::to_string(value) + ": expected " +
                           std::to_string(min) + " to " + std::to_string(max));
  };
  FD_RETURN_IF_ERROR(check("layers", sim.layers, 1, kMaxLayers));
  FD_RETURN_IF_ERROR(check("batch", scheduler.max_batch, 1, 10'000'000));
  FD_RETURN_IF_ERROR(check("mini_batches", scheduler.mini_batches, 1, 64));
  FD_RETURN_IF_ERROR(check("rworkers", scheduler.num_rworkers, 1, 100'000));
  FD_RETURN_IF_ERROR(check("max_context", scheduler.max_context, 2, 1 << 24));
  FD_RETURN_IF_ERROR(check("block_tokens", scheduler.block_tokens, 1, 1 << 24));
  FD_RETURN_IF_ERROR(check("prefill_tokens_per_step", scheduler.prefill_tokens_per_step, 1, 1 << 30));
  FD_RETURN_IF_ERROR(check("workload_limit", scheduler.workload_limit, 0, int64_t{1} << 53));
  FD_RETURN_IF_ERROR(check("interval_steps", scheduler.interval_steps, 0, 1'000'000));
  return check("kv_tokens", FLAGS_kv_tokens, 0, int64_t{1} << 53);
}

Status SetScheduler(const plan::ModelProfile& model, SimOptions* sim) {
  SchedulerOptions& scheduler = sim->scheduler;
  Choose(FLAGS_mini_batches, 2, &scheduler.mini_batches);
  Choose(FLAGS_batch, 0, &scheduler.max_batch);
  Choose(FLAGS_max_context, 4096, &scheduler.max_context);
  Choose(FLAGS_block_tokens, 128, &scheduler.block_tokens);
  Choose(FLAGS_prefill_tokens_per_step, 4096, &scheduler.prefill_tokens_per_step);
  Choose(FLAGS_workload_limit, int64_t{0}, &scheduler.workload_limit);
  Choose(FLAGS_interval_steps, 0, &scheduler.interval_steps);
  Choose(FLAGS_rworkers, static_cast<int>(model.rworkers.size()), &scheduler.num_rworkers);
  Choose(FLAGS_layers, 0, &sim->layers);
  if (!FLAGS_load_control.empty()) scheduler.load_control = FLAGS_load_control == "on";
  if (FLAGS_placement == "round_robin") {
    scheduler.placement = PlacementRule::kRoundRobin;
  } else if (FLAGS_placement == "least_loaded") {
    scheduler.placement = PlacementRule::kLeastLoaded;
  } else if (FLAGS_placement != "lowest_peak") {
    return InvalidArgument("--placement is '" + FLAGS_placement +
                           "': expected lowest_peak, least_loaded or round_robin");
  }
  if (scheduler.max_batch == 0) return InvalidArgument("give --batch, or a --config that has pipeline.max_batch");
  if (sim->layers == 0) return InvalidArgument("give --layers, or the deployment's --config");
  return CheckRanges(*sim);
}

// The cache of each R-worker: what the flag says, else what the config's memory holds, else enough.
Status SetBlocks(const plan::ModelProfile& model, int64_t kv_bytes, SimOptions* sim) {
  const int64_t block_tokens = sim->scheduler.block_tokens;
  if (FLAGS_kv_tokens > 0) {
    sim->kv_blocks = FLAGS_kv_tokens / block_tokens;
  } else if (kv_bytes > 0) {
    sim->kv_blocks = kv_bytes / (plan::KvTokenBytes(model.key) * block_tokens * sim->layers);
  } else {
    sim->kv_blocks = (sim->scheduler.max_context + block_tokens - 1) / block_tokens * sim->scheduler.max_batch;
  }
  if (sim->kv_blocks > 0) return OkStatus();
  return InvalidArgument("an R-worker's cache does not hold one block of " + std::to_string(block_tokens) +
                         " tokens: raise --kv_tokens or the config's kv_memory, or lower --block_tokens");
}

Status Set(Setting* setting) {
  FD_RETURN_IF_ERROR(CheckFlags());
  FD_ASSIGN_OR_RETURN(setting->profile, plan::LoadProfile(FLAGS_profile));
  SimOptions& sim = setting->sim;
  sim = {};
  sim.scheduler = {
      .mini_batches = 0, .max_batch = 0, .prefill_tokens_per_step = 0, .block_tokens = 0, .num_rworkers = 0};
  sim.layers = 0;
  int64_t kv_bytes = 0;
  if (FLAGS_config.empty()) {
    FD_ASSIGN_OR_RETURN(setting->model, ModelByName(setting->profile));
  } else {
    FD_ASSIGN_OR_RETURN(const Config config, LoadConfig(FLAGS_config));
    FD_ASSIGN_OR_RETURN(setting->model, plan::FindModel(setting->profile, plan::KeyOf(config)));
    FromConfig(config, &sim);
    kv_bytes = KvBytes(config);
  }
  FD_RETURN_IF_ERROR(SetScheduler(*setting->model, &sim));
  FD_RETURN_IF_ERROR(SetBlocks(*setting->model, kv_bytes, &sim));
  FD_RETURN_IF_ERROR(SetJitter(*setting->model, &sim));
  FD_RETURN_IF_ERROR(SetFaults(&sim));
  int used = 0;
  if (std::sscanf(FLAGS_measure.c_str(), "%lf:%lf%n", &sim.measure_from, &sim.measure_to, &used) != 2 ||
      static_cast<size_t>(used) != FLAGS_measure.size() ||
      !(sim.measure_from >= 0 && sim.measure_from < sim.measure_to && sim.measure_to <= 1)) {
    return InvalidArgument("--measure is '" + FLAGS_measure + "': expected FROM:TO with 0 <= FROM < TO <= 1");
  }
  sim.layers_per_event = FLAGS_events == "step" ? sim.layers : 1;
  sim.wire_on_rworker = FLAGS_wire_on_rworker;
  sim.straggling = FLAGS_straggling;
  sim.straggler_factor = FLAGS_straggler_factor;
  sim.in_flight = FLAGS_in_flight;
  sim.seed = FLAGS_seed;
  setting->requests = {.trace = FLAGS_trace,
                       .prompt_tokens = FLAGS_prompt_tokens,
                       .output_tokens = FLAGS_output_tokens,
                       .requests = FLAGS_requests,
                       .rate = FLAGS_rate,
                       .shortest_end = FLAGS_shortest_end,
                       .max_context = sim.scheduler.max_context,
                       .seed = FLAGS_seed};
  if (FLAGS_trace.empty() && FLAGS_requests == 0) setting->requests.requests = 2 * sim.scheduler.max_batch;
  return OkStatus();
}

std::string AskedFor(const RequestOptions& requests) {
  if (!requests.trace.empty()) return "lengths of " + requests.trace;
  return "prompts of " + std::to_string(requests.prompt_tokens) + ", answers of " +
         std::to_string(requests.output_tokens) + " tokens";
}

int Main() {
  Setting setting;
  if (const Status status = Set(&setting); !status.ok()) return Fail(status);
  Result<std::vector<SimRequest>> requests = MakeRequests(setting.requests);
  if (!requests.ok()) return Fail(requests.status());
  std::unique_ptr<TimelineTrace> timeline;
  if (!FLAGS_trace_out.empty()) {
    auto file = ChromeTrace::Create(FLAGS_trace_out);
    if (!file.ok()) return Fail(file.status());
    timeline = std::make_unique<TimelineTrace>(std::move(*file), setting.sim.scheduler.mini_batches,
                                               setting.sim.scheduler.num_rworkers);
  }
  const SimReport report = ClusterSim(*setting.model, setting.sim, std::move(*requests), timeline.get()).Run();
  const nlohmann::ordered_json json = ToJson(report, setting.sim, AskedFor(setting.requests));
  std::fputs(Table(json).c_str(), stdout);
  if (timeline != nullptr) {
    if (timeline->dropped() > 0) {
      std::fprintf(stderr, "fastdecode-sim: %s is full; the last %lld events are not in it\n", FLAGS_trace_out.c_str(),
                   static_cast<long long>(timeline->dropped()));
    }
    if (const Status status = timeline->Close(); !status.ok()) return Fail(status);
  }
  if (FLAGS_json.empty()) return kExitOk;
  std::ofstream file(FLAGS_json);
  file << json.dump(2) << "\n";
  file.close();
  return file.good() ? kExitOk : Fail(InvalidArgument(FLAGS_json + " can't be written"));
}

}  // namespace
}  // namespace fastdecode::sim

int main(int argc, char** argv) {
  fastdecode::InitLogging(argv[0]);
  const fastdecode::ProgramText text{
      .name = "fastdecode-sim",
      .usage =
          "a deployment simulated: the production scheduler, and times from a profile\n"
          "  fastdecode-sim --profile F [--config F | --model NAME --layers N --batch N --rworkers N]\n"
          "      --trace F [--requests N] [--rate X]  |  --prompt_tokens N --output_tokens N [--requests N]\n"
          "      [--events layer|step] [--fail LIST] [--slow LIST] [--seed N] [--json F] [--trace_out F]\n"
          "Same flags and files, same bytes out. Exit status: 0 done; 2 usage, a damaged profile or trace."};
  if (auto exit = fastdecode::ParseFlags(text, &argc, &argv)) return *exit;
  return fastdecode::sim::Main();
}
