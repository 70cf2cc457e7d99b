// fastdecode-sworker: flags -> config -> wiring -> run until SIGTERM.
#include <gflags/gflags.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <future>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>

#include "common/base/logging.h"
#include "common/config/config.h"
#include "common/config/secret.h"
#include "common/flags/parse_flags.h"
#include "common/traces/chrome_trace.h"
#include "sworker/attention/remote_attention.h"
#include "sworker/device/device_runtime.h"
#include "sworker/device/torch_setup.h"
#include "sworker/engine/engine.h"
#include "sworker/engine/timeline.h"
#include "sworker/model/model.h"
#include "sworker/rworkers/rworker_pool.h"
#include "sworker/server/api_server.h"
#include "sworker/serving/serving_core.h"

DEFINE_string(config, "", "the deployment's JSON file (docs/config.md)");
DEFINE_bool(check_config, false, "print the effective config, every default filled in, and exit");

DEFINE_string(trace_out, "", "write a timeline that opens in Perfetto (ui.perfetto.dev)");

namespace fastdecode {
namespace {

constexpr int kExitOk = 0, kExitUsage = 2, kExitWorker = 3;
constexpr std::chrono::seconds kJoinTimeout{30};

int Fail(int code, const std::string& message) {
  std::fprintf(stderr, "fastdecode-sworker: %s\n", message.c_str());
  return code;
}

nlohmann::json SessionsJson(const RWorkerStats& stats) {
  nlohmann::json sessions = nlohmann::json::object();
  for (uint16_t kind = 1; kind <= kMaxTransportKind; ++kind) {
    sessions[NameOf(static_cast<TransportKind>(kind))] = stats.sessions_over[kind];
  }
  return sessions;
}

nlohmann::json RWorkerStatsJson(const Config& config, const RWorkerPool& pool) {
  nlohmann::json list = nlohmann::json::array();
  for (int r = 0; r < pool.size(); ++r) {
    const RWorkerStats stats = pool.stats(r);
    list.push_back({{"address", config.rworkers.hosts[static_cast<size_t>(r)].address},
                    {"joined", stats.incarnation != 0},
                    {"incarnation", stats.incarnation},
                    {"transport", stats.incarnation != 0 ? NameOf(stats.transport) : ""},
                    {"transport_why", stats.transport_why != nullptr ? *stats.transport_why : ""},
                    {"sessions", SessionsJson(stats)},
                    {"free_blocks", stats.free_blocks},
                    {"total_blocks", stats.total_blocks},
                    {"sequences", stats.sequences},
                    {"workload", stats.workload},
                    {"peak_workload", stats.peak_workload},
                    {"rows", stats.rows},
                    {"compute_ms", static_cast<double>(stats.compute_ns) / 1e6},
                    {"kv_token_bytes", stats.kv_token_bytes},
                    {"kv_beyond_range", stats.kv_beyond_range}});
  }
  return list;
}

std::string MissingText(const RWorkerPool& pool) {
  std::string text;
  for (const RWorkerPool::Missing& missing : pool.missing())
    text += "\n  " + missing.address + ": " + missing.reason.message();
  return text;
}

// Takes SIGINT and SIGTERM on a thread of its own. Before anybody waits for them there is
// nobody to answer, so they end the process at once, however long a model loads.
class StopSignals {
 public:
  // Before any other thread is made: all inherit the blocked mask.
  StopSignals() {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &set, nullptr);
    std::thread([this, set] {
      int signal = 0;
      sigwait(&set, &signal);
      LOG(INFO) << "stopping (" << strsignal(signal) << ")";
      if (!awaited_.exchange(true)) ::_exit(failed_ ? kExitWorker : kExitOk);
      stop_.set_value();
    }).detach();
  }
  // Returns when a signal has come.
  void Wait() {
    if (!awaited_.exchange(true)) stop_.get_future().wait();
  }
  // The device failed: ends as a signal would, but not well.
  void Fail() {
    failed_ = true;
    ::kill(::getpid(), SIGTERM);
  }
  bool failed() const { return failed_; }

 private:
  std::atomic<bool> awaited_ = false;
  std::atomic<bool> failed_ = false;
  std::promise<void> stop_;
};

RWorkerCallbacks MakeCallbacks(Engine& engine, RemoteAttention& attention, ServingCore& core) {
  RWorkerCallbacks callbacks;
  callbacks.on_joined = [&](int index, const RWorkerGrant& grant, std::unique_ptr<Endpoint> endpoint) {
    // std::function wants copies: the endpoint travels in a shared holder.
    auto holder = std::make_shared<std::unique_ptr<Endpoint>>(std::move(endpoint));
    engine.Post([&, index, grant, holder] {
      attention.Join(index, std::move(*holder));
      core.OnRWorkerJoined(index, grant);
    });
  };
  callbacks.on_lost = [&](int index, uint32_t, const Status& reason) {
    engine.Post([&, index, reason] { attention.Lose(index, reason); });
  };
  return callbacks;
}

std::set<std::string> TransportsOf(const RWorkerPool& pool) {
  std::set<std::string> kinds;
  for (int r = 0; r < pool.size(); ++r) {
    const RWorkerStats stats = pool.stats(r);
    if (stats.incarnation != 0) kinds.insert(NameOf(stats.transport));
  }
  return kinds;
}

// Brings the API up once every R-worker is there, and waits for the end.
int ServeApi(const Config& config, const Secret& secret, RWorkerPool& pool, ServingCore& core, const PlanWatch* plan,
             std::atomic<ApiServer*>* publish_to, StopSignals* signals) {
  if (!pool.WaitAllJoined(kJoinTimeout))
    return Fail(kExitWorker, "not every R-worker could be reached:" + MissingText(pool));
  if (plan != nullptr) {
    if (const Status same = plan->CheckTransports(TransportsOf(pool)); !same.ok()) {
      return Fail(kExitUsage, same.message());
    }
  }
  const ApiServerOptions options{.listen = config.sworker.listen, .info = MakeServerInfo(config, FASTDECODE_VERSION)};
  auto api = ApiServer::Start(options, secret.key, config.model_config, core);
  if (!api.ok()) return Fail(kExitWorker, api.status().message());
  *publish_to = api->get();
  std::printf("ready fastdecode-sworker %s device=%s model=%s rworkers=%d transport=%s max_batch=%d max_context=%d\n",
              (*api)->endpoint().c_str(), config.sworker.device.c_str(), config.model.path.c_str(), pool.size(),
              plan::TransportsText(TransportsOf(pool)).c_str(), config.pipeline.max_batch, config.max_context);
  std::fflush(stdout);
  signals->Wait();
  (*api)->StopAccepting();
  core.Shutdown();
  *publish_to = nullptr;
  (*api)->Stop();
  return kExitOk;
}

int Serve(const Config& config, StopSignals* signals) {
  const auto secret = LoadSecret(config.transport.secret_file);
  if (!secret.ok()) return Fail(kExitUsage, secret.status().message());
  auto device = MakeDeviceRuntime(config.sworker.device, SWorkerThreads(config), config.sworker.pin);
  if (!device.ok()) return Fail(kExitWorker, device.status().message());
  LOG(INFO) << "device: " << (*device)->description();
  auto model = LoadModel(config, **device);
  if (!model.ok()) {
    const bool memory = model.status().code() == StatusCode::kResourceExhausted;
    return Fail(memory ? kExitWorker : kExitUsage, model.status().message());
  }

  const auto plan = PlanWatch::Make(config);
  if (!plan.ok()) return Fail(kExitUsage, plan.status().message());
  Timeline timeline(config.pipeline.mini_batches);
  std::unique_ptr<TimelineTrace> trace;
  if (!FLAGS_trace_out.empty()) {
    auto file = ChromeTrace::Create(FLAGS_trace_out);
    if (!file.ok()) return Fail(kExitUsage, file.status().message());
    trace = std::make_unique<TimelineTrace>(std::move(*file), config.pipeline.mini_batches,
                                            static_cast<int>(config.rworkers.hosts.size()));
    timeline.TraceTo(trace.get());
  }
  if (*plan) timeline.Observe([&](const FinishedPass& pass) { (*plan)->PassDone(pass, timeline); });
  const SessionOptions session = MakeSessionOptions(config);
  RemoteAttention attention(session, static_cast<int>(config.rworkers.hosts.size()));
  ServingCore core(config, timeline);
  Engine engine(MakeEngineOptions(config), **model, **device, attention, timeline, core);
  std::vector<std::string> addresses;
  for (const RWorkerHost& host : config.rworkers.hosts) addresses.push_back(host.address);
  auto pool = RWorkerPool::Start(
      addresses, *secret, session, [&](size_t bytes) { return (*device)->AllocatePinned(bytes); },
      MakeCallbacks(engine, attention, core));
  if (!pool.ok()) return Fail(kExitUsage, pool.status().message());

  std::atomic<ApiServer*> publish_to = nullptr;
  ServingOutputs outputs;
  outputs.publish = [&](std::span<const TokenUpdate> tokens, std::span<const RequestFinished> finished) {
    if (ApiServer* api = publish_to.load()) api->Publish(tokens, finished);
  };
  outputs.report_lost = [&](int index, uint32_t incarnation, const Status& reason) {
    (*pool)->ReportLost(index, incarnation, reason);
  };
  outputs.fatal = [signals](const Status&) { signals->Fail(); };
  outputs.rworker_stats = [&] { return RWorkerStatsJson(config, **pool); };
  outputs.plan = plan->get();
  core.Start(engine, outputs);
  engine.Start();
  const int code = ServeApi(config, *secret, **pool, core, plan->get(), &publish_to, signals);
  core.Shutdown();
  pool->reset();
  engine.Stop();
  if (trace != nullptr) {
    if (const Status status = trace->Close(); !status.ok()) LOG(ERROR) << status.message();
    if (trace->dropped() > 0)
      LOG(WARNING) << FLAGS_trace_out << " is full: it lacks the last " << trace->dropped() << " events";
  }
  return signals->failed() ? kExitWorker : code;
}

int Main() {
  if (FLAGS_config.empty()) return Fail(kExitUsage, "--config FILE is required; --help lists the flags");
  Result<Config> config = LoadConfig(FLAGS_config);
  if (!config.ok()) return Fail(kExitUsage, config.status().message());
  if (FLAGS_check_config) {
    std::printf("%s\n", ConfigToJson(*config).c_str());
    return kExitOk;
  }
  if (config->rworkers.hosts.empty())
    return Fail(kExitUsage, FLAGS_config +
                                ": has rworkers.count, whose ports only the launch script knows: start it with "
                                "scripts/launch/fastdecode-cluster up " +
                                FLAGS_config + ", or name rworkers.hosts");
  if (const Status planned = ApplyPlan(&*config); !planned.ok()) return Fail(kExitUsage, planned.message());
  StopSignals signals;
  InitTorch();
  return Serve(*config, &signals);
}

}  // namespace
}  // namespace fastdecode

int main(int argc, char** argv) {
  fastdecode::InitLogging(argv[0]);
  const fastdecode::ProgramText text{
      .name = "fastdecode-sworker",
      .usage =
          "the S-worker: weights, scheduler, engine and API of one deployment\n"
          "  fastdecode-sworker --config F [--check-config] [--trace-out F]\n"
          "Serves until SIGTERM. Exit status: 0 done; 2 usage, config or a damaged model; 3 a worker could not "
          "start or was lost and nothing could go on."};
  if (auto exit = fastdecode::ParseFlags(text, &argc, &argv)) return *exit;
  return fastdecode::Main();
}
