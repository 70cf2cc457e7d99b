// fastdecode-plan: what a deployment will do before it is bought: flags -> command.
#include <gflags/gflags.h>
#include <signal.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "common/base/logging.h"
#include "common/flags/parse_flags.h"
#include "kernels/kv_codecs.h"
#include "plan/measure/measure_command.h"
#include "plan/measure/read_rate.h"
#include "plan/recommend.h"

DEFINE_string(config, "", "measure: the deployments' JSON files, with commas between");
DEFINE_string(out, "", "measure: the profile to write; entries of other models that it has stay");
DEFINE_bool(rworkers_up, false, "measure: the configs' R-workers are up already; else the launch script starts them");
DEFINE_double(seconds, 150, "measure: time for one model, about. read: time for all, at most 10");
DEFINE_int32(threads, 1, "read: threads that read memory. recommend: those of a S-worker on a CPU");
DEFINE_string(model, "", "recommend: the model's Hugging Face folder; only config.json is read");
DEFINE_int32(layers, 0, "recommend: how many of its layers (0: all)");
DEFINE_int32(sockets, 1, "recommend: CPU sockets that there are, one R-worker each");
DEFINE_string(profile, "", "recommend: times that were measured; else the hardware flags below are taken");
DEFINE_double(prompt_tokens, 0, "recommend: mean length of a prompt");
DEFINE_double(output_tokens, 1024, "recommend: mean length of an answer");
DEFINE_int32(max_context, 0, "recommend: tokens of the longest sequence (0: the two means together)");
DEFINE_double(latency_s, 0, "recommend: what a whole sequence may take (0: the batch is the knee of E(B))");
DEFINE_double(tokens_per_s, 0, "recommend: what is wanted at least (0: nothing)");
DEFINE_int32(batch, 0, "recommend: sequences in flight (0: choose)");
DEFINE_int32(mini_batches, 2, "recommend: that take turns");
DEFINE_string(device, "cuda:0", "recommend: the S-worker's, cuda:N or cpu");
DEFINE_string(dtype, "auto", "recommend: of the S-part: auto (the model's on cuda, f32 on a cpu), f32, f16, bf16");
DEFINE_string(kv_dtype, "f16", "recommend: of the KV cache: a format, or keys/values apart");
DEFINE_int32(block_tokens, 128, "recommend: of the KV cache");
DEFINE_string(gpu_memory, "", "recommend: of the S-worker's device, such as 24GiB (empty: not asked)");
DEFINE_string(socket_memory, "", "recommend: for the KV cache of one socket, such as 80GiB (empty: not asked)");
DEFINE_double(gpu_price, 0, "recommend: of the S-worker's node, an hour, in any money");
DEFINE_double(socket_price, 0, "recommend: of a socket, the same");
DEFINE_double(gpu_tflops, 125, "recommend: of the device, dense, in the dtype; the defaults are an A10's");
DEFINE_double(gpu_gbytes_per_s, 600, "recommend: of its memory");
DEFINE_double(gpu_share, 0.55, "recommend: of these FLOP/s that matrix products reach");
DEFINE_double(gpu_memory_share, 0.8, "recommend: of this bandwidth that they reach");
DEFINE_double(gpu_launch_us, 40, "recommend: a layer takes beyond that");
DEFINE_double(pcie_gbytes_per_s, 20, "recommend: between the device and its host");
DEFINE_double(socket_gbytes_per_s, 204.8, "recommend: of a socket's memory");
DEFINE_double(socket_share, 0.6, "recommend: of it that attention reads K and V with");
DEFINE_double(link_gbits_per_s, 100, "recommend: of the S-worker's network");
DEFINE_double(link_latency_us, 15, "recommend: of one exchange, both ways");
DEFINE_bool(json, false, "recommend: print JSON");
DEFINE_string(write_config, "", "recommend: write a deployment's config to this file");
DEFINE_string(transport, "auto", "recommend: tcp, shm or verbs, where the profile has the model over several");
DEFINE_string(hosts, "",
              "recommend: addresses of R-workers for that config, with commas between (empty: on this host)");
DEFINE_string(weights, "checkpoint", "recommend: of that config, checkpoint or random");

namespace fastdecode::plan {
namespace {

constexpr int kExitOk = 0, kExitUsage = 2, kExitWorker = 3;

std::atomic<int> stop_signal{0};
void OnSignal(int signal) { stop_signal.store(signal); }

int Fail(const Status& status) {
  std::fprintf(stderr, "fastdecode-plan: %s\n", status.message().c_str());
  const bool usage = status.code() == StatusCode::kInvalidArgument || status.code() == StatusCode::kNotFound ||
                     status.code() == StatusCode::kPermissionDenied || status.code() == StatusCode::kUnimplemented ||
                     status.code() == StatusCode::kResourceExhausted;
  return usage ? kExitUsage : kExitWorker;
}

std::vector<std::string> SplitCommas(const std::string& text) {
  std::vector<std::string> parts;
  std::istringstream in(text);
  for (std::string part; std::getline(in, part, ',');) {
    if (!part.empty()) parts.push_back(part);
  }
  return parts;
}

int Measure() {
  const MeasureCommand command{.configs = SplitCommas(FLAGS_config),
                               .out = FLAGS_out,
                               .rworkers_are_up = FLAGS_rworkers_up,
                               .seconds = FLAGS_seconds};
  if (command.configs.empty() || command.out.empty()) return Fail(InvalidArgument("measure needs --config and --out"));
  if (const Status seconds = CheckFlag("seconds", FLAGS_seconds, 1, 3600); !seconds.ok()) return Fail(seconds);
  const Status status = RunMeasure(command, stop_signal);
  return status.ok() ? kExitOk : Fail(status);
}

int Read() {
  if (const Status threads = CheckFlag("threads", FLAGS_threads, 1, 4096); !threads.ok()) return Fail(threads);
  if (const Status seconds = CheckFlag("seconds", FLAGS_seconds, 0.1, 3600); !seconds.ok()) return Fail(seconds);
  const Result<ReadRate> rate = MeasureReadBandwidth(FLAGS_threads, std::min(FLAGS_seconds, 10.0));
  if (!rate.ok()) return Fail(rate.status());
  const nlohmann::ordered_json json = {{"name", "read_bandwidth"},
                                       {"case", {{"threads", FLAGS_threads}, {"method", rate->method}}},
                                       {"unit", "GB/s"},
                                       {"median", rate->bytes_per_s / 1e9},
                                       {"spread", rate->spread}};
  std::printf("%s\n", json.dump().c_str());
  return kExitOk;
}

HardwareFigures Figures() {
  return {.gpu_tflops = FLAGS_gpu_tflops,
          .gpu_gbytes_per_s = FLAGS_gpu_gbytes_per_s,
          .gpu_share = FLAGS_gpu_share,
          .gpu_memory_share = FLAGS_gpu_memory_share,
          .gpu_launch_us = FLAGS_gpu_launch_us,
          .pcie_gbytes_per_s = FLAGS_pcie_gbytes_per_s,
          .socket_gbytes_per_s = FLAGS_socket_gbytes_per_s,
          .socket_share = FLAGS_socket_share,
          .link_gbits_per_s = FLAGS_link_gbits_per_s,
          .link_latency_us = FLAGS_link_latency_us};
}

// What --model and the flags about formats say, by way of a config without its R-workers.
Result<Config> ConfigOfFlags() {
  if (FLAGS_model.empty()) return InvalidArgument("recommend needs --model");
  Config config;
  FD_ASSIGN_OR_RETURN(config.model_config, LoadModelConfig(FLAGS_model));
  const int32_t layers = config.model_config.attention.num_layers;
  if (FLAGS_layers < 0 || FLAGS_layers > layers) {
    return InvalidArgument("--layers is out of 0 to the model's " + std::to_string(layers));
  }
  if (FLAGS_layers > 0) config.model_config.attention.num_layers = FLAGS_layers;
  const bool cuda = FLAGS_device.starts_with("cuda:") && FLAGS_device.size() > 5 &&
                    FLAGS_device.find_first_not_of("0123456789", 5) == std::string::npos;
  if (FLAGS_device != "cpu" && !cuda)
    return InvalidArgument("--device is '" + FLAGS_device + "': expected cpu or cuda:N");
  FD_RETURN_IF_ERROR(CheckFlag("threads", FLAGS_threads, 1, 4096));
  config.sworker.device = FLAGS_device;
  config.sworker.threads = FLAGS_threads;
  const std::string& dtype = FLAGS_dtype;
  config.model.dtype = dtype == "f32"    ? DType::kF32
                       : dtype == "f16"  ? DType::kF16
                       : dtype == "bf16" ? DType::kBf16
                                         : DType::kAuto;
  if (DTypeName(config.model.dtype) != dtype)
    return InvalidArgument("--dtype is '" + dtype + "': expected auto, f32, f16 or bf16");
  const auto codes = kernels::CodesOf(FLAGS_kv_dtype);
  if (!codes)
    return InvalidArgument("--kv_dtype is '" + FLAGS_kv_dtype + "': expected one or two of " + kernels::FormatList());
  config.rworkers.kv_dtype = {std::string(kernels::NameOf(codes->keys)), std::string(kernels::NameOf(codes->values))};
  const std::string& transport = FLAGS_transport;
  if (transport != "auto" && transport != "tcp" && transport != "shm" && transport != "verbs")
    return InvalidArgument("--transport is '" + transport + "': expected auto, tcp, shm or verbs");
  config.transport.kind = transport;
  return config;
}

Result<ModelProfile> TimesOfFlags(const Config& config) {
  const ModelKey key = KeyOf(config);
  if (FLAGS_profile.empty()) {
    const HardwareFigures figures = Figures();
    FD_RETURN_IF_ERROR(CheckFigures(figures));
    const auto folder = std::filesystem::path(FLAGS_model + "/").lexically_normal().parent_path();
    return ProfileOfHardware(figures, key, folder.filename().string());
  }
  FD_ASSIGN_OR_RETURN(const Profile profile, LoadProfile(FLAGS_profile));
  const Result<const ModelProfile*> found = FindModel(profile, key);
  if (!found.ok()) return Status(found.status().code(), FLAGS_profile + ": " + found.status().message());
  return **found;
}

Result<int64_t> MemoryOfFlag(const char* flag, const std::string& text) {
  if (text.empty()) return 0;
  Result<int64_t> bytes = ParseSize(text);
  if (bytes.ok() && *bytes == 0)
    return InvalidArgument(std::string("--") + flag + ": found 0; leave it out if it does not matter");
  if (bytes.ok()) return bytes;
  return InvalidArgument(std::string("--") + flag + ": " + bytes.status().message());
}

// A config's own bounds, where it has them.
Status CheckWishes() {
  FD_RETURN_IF_ERROR(CheckFlag("sockets", FLAGS_sockets, 1, 256));
  FD_RETURN_IF_ERROR(CheckFlag("mini_batches", FLAGS_mini_batches, 1, 16));
  FD_RETURN_IF_ERROR(CheckFlag("batch", FLAGS_batch, 0, 65536));
  FD_RETURN_IF_ERROR(CheckFlag("block_tokens", FLAGS_block_tokens, 32, 1024));
  if ((FLAGS_block_tokens & (FLAGS_block_tokens - 1)) != 0) {
    return InvalidArgument("--block_tokens: found " + std::to_string(FLAGS_block_tokens) + "; expected a power of two");
  }
  FD_RETURN_IF_ERROR(CheckFlag("prompt_tokens", FLAGS_prompt_tokens, 0, 1 << 24));
  FD_RETURN_IF_ERROR(CheckFlag("output_tokens", FLAGS_output_tokens, 1, 1 << 24));
  FD_RETURN_IF_ERROR(CheckFlag("max_context", FLAGS_max_context, 0, 1 << 24));
  FD_RETURN_IF_ERROR(CheckFlag("latency_s", FLAGS_latency_s, 0, 1e9));
  FD_RETURN_IF_ERROR(CheckFlag("tokens_per_s", FLAGS_tokens_per_s, 0, 1e12));
  FD_RETURN_IF_ERROR(CheckFlag("gpu_price", FLAGS_gpu_price, 0, 1e12));
  return CheckFlag("socket_price", FLAGS_socket_price, 0, 1e12);
}

Result<Wishes> WishesOfFlags(const Config& config) {
  Wishes wishes;
  wishes.model = config.model_config;
  FD_ASSIGN_OR_RETURN(wishes.times, TimesOfFlags(config));
  FD_ASSIGN_OR_RETURN(wishes.device_memory, MemoryOfFlag("gpu_memory", FLAGS_gpu_memory));
  FD_ASSIGN_OR_RETURN(wishes.socket_memory, MemoryOfFlag("socket_memory", FLAGS_socket_memory));
  FD_RETURN_IF_ERROR(CheckWishes());
  wishes.sockets = FLAGS_sockets;
  wishes.mini_batches = FLAGS_mini_batches;
  wishes.prompt_tokens = FLAGS_prompt_tokens;
  wishes.output_tokens = FLAGS_output_tokens;
  wishes.max_context = FLAGS_max_context;
  wishes.latency_s = FLAGS_latency_s;
  wishes.tokens_per_s = FLAGS_tokens_per_s;
  wishes.batch = FLAGS_batch;
  wishes.block_tokens = FLAGS_block_tokens;
  wishes.device_price = FLAGS_gpu_price;
  wishes.socket_price = FLAGS_socket_price;
  if (FLAGS_profile.empty()) wishes.device_bytes_per_s = FLAGS_gpu_gbytes_per_s * 1e9 * FLAGS_gpu_memory_share;
  return wishes;
}

Status WriteConfig(const Wishes& wishes, const Recommendation& recommendation) {
  const ConfigChoice choice{.model_path = std::filesystem::absolute(FLAGS_model).lexically_normal().string(),
                            .device = FLAGS_device,
                            .dtype = FLAGS_dtype,
                            .weights = FLAGS_weights,
                            .profile = FLAGS_profile.empty() ? "" : std::filesystem::absolute(FLAGS_profile).string(),
                            .hosts = SplitCommas(FLAGS_hosts)};
  if (!choice.hosts.empty() && static_cast<int>(choice.hosts.size()) < recommendation.deployment.rworkers) {
    return InvalidArgument("--hosts names " + std::to_string(choice.hosts.size()) + " R-workers; " +
                           std::to_string(recommendation.deployment.rworkers) + " are recommended");
  }
  // Read as the S-worker reads it before it takes the place of what is there.
  const std::string draft = FLAGS_write_config + ".draft";
  std::ofstream file(draft);
  file << MakeConfig(wishes, recommendation, choice).dump(2) << "\n";
  file.close();
  if (!file.good()) return InvalidArgument(draft + " can't be written: " + std::strerror(errno));
  Status status = LoadConfig(draft).status();
  if (status.ok() && std::rename(draft.c_str(), FLAGS_write_config.c_str()) != 0) {
    status = InvalidArgument(FLAGS_write_config + " can't be written: " + std::strerror(errno));
  }
  if (!status.ok()) std::remove(draft.c_str());
  return status;
}

int RecommendAll() {
  const Result<Config> config = ConfigOfFlags();
  if (!config.ok()) return Fail(config.status());
  const Result<Wishes> wishes = WishesOfFlags(*config);
  if (!wishes.ok()) return Fail(wishes.status());
  const Result<Recommendation> recommendation = Recommend(*wishes);
  if (!recommendation.ok()) return Fail(recommendation.status());
  std::fputs((FLAGS_json ? ToJson(*wishes, *recommendation).dump(2) + "\n" : Table(*wishes, *recommendation)).c_str(),
             stdout);
  if (FLAGS_write_config.empty()) return kExitOk;
  const Status written = WriteConfig(*wishes, *recommendation);
  return written.ok() ? kExitOk : Fail(written);
}

// For what has R-workers to take down; everything else a signal may simply end.
void WatchSignals() {
  struct sigaction action {};
  action.sa_handler = &OnSignal;
  action.sa_flags = static_cast<int>(SA_RESETHAND);  // A second one ends us at once.
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

int Main(const std::string& command) {
  if (command == "measure") {
    WatchSignals();
    return Measure();
  }
  if (command == "read") return Read();
  if (command == "recommend") return RecommendAll();
  return Fail(InvalidArgument("give one command: measure, recommend or read; --help says what they do"));
}

}  // namespace
}  // namespace fastdecode::plan

int main(int argc, char** argv) {
  fastdecode::InitLogging(argv[0]);
  const fastdecode::ProgramText text{
      .name = "fastdecode-plan",
      .usage =
          "plans a deployment (docs/planning.md)\n"
          "  fastdecode-plan measure --config F[,F...] --out PROFILE\n"
          "      measures the parts of the deployments on this machine and its R-workers\n"
          "  fastdecode-plan recommend --model DIR --sockets N [--profile F | hardware] [--json] [--write_config F]\n"
          "      how large a batch and how many R-workers, what that will do, and why\n"
          "  fastdecode-plan read [--threads N]   the read bandwidth of this machine's memory, as JSON\n"
          "Exit status: 0 done; 2 usage, config or profile; 3 a worker could not start or was lost."};
  std::string command;
  if (argc > 1 && argv[1][0] != '-') {  // before the flags, which know no other arguments
    command = argv[1];
    argv[1] = argv[0];
    ++argv;
    --argc;
  }
  if (auto exit = fastdecode::ParseFlags(text, &argc, &argv)) return *exit;
  return fastdecode::plan::Main(command);
}
