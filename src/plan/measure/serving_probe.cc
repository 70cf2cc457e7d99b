#include "plan/measure/serving_probe.h"

#include <atomic>
#include <chrono>
#include <future>
#include <map>

#include "common/api/api_client.h"
#include "common/base/clock.h"
#include "common/config/secret.h"
#include "sworker/server/api_server.h"
#include "sworker/serving/serving_core.h"

namespace fastdecode::plan {
namespace {

constexpr std::chrono::minutes kTimeout{5};
constexpr int kLookMs = 200;  // a signal wakes nobody here

// Follows one run's tokens. The window opens with the first token of the last request, and closes with the
// first end. Time is taken at that request's tokens alone: those of different mini-batches don't come at even
// distances.
class Window {
 public:
  explicit Window(int batch) : batch_(static_cast<size_t>(batch)) {}

  void Take(const TokensMessage& message) {
    if (closed_) return;
    bool now = false;
    for (const RequestId id : message.ids) {
      if (++tokens_of_[id] == 1 && ++decoding_ == batch_) last_ = id;
      now = now || (decoding_ == batch_ && id == last_);
    }
    received_ += message.ids.size();
    if (!now) return;
    end_ = {NowNs(), received_, tokens_of_[last_]};
    if (begin_.ns == 0) begin_ = end_;
  }
  void Close() { closed_ = true; }

  Result<LiveRun> Figures(int prompt) const {
    const int steps = end_.tokens - begin_.tokens;
    if (steps == 0) return Unavailable("the requests of a live run never decoded together");
    return LiveRun{static_cast<double>(end_.ns - begin_.ns) / 1e9 / steps,
                   prompt + static_cast<double>(begin_.received + end_.received) / static_cast<double>(batch_) / 2};
  }

 private:
  struct Mark {
    int64_t ns = 0;
    size_t received = 0;  // by all
    int tokens = 0;       // of last_
  };

  const size_t batch_;
  std::map<RequestId, int> tokens_of_;
  size_t decoding_ = 0, received_ = 0;
  RequestId last_ = 0;
  Mark begin_, end_;
  bool closed_ = false;
};

}  // namespace

// The caller's thread, and those that it starts, are the client's meanwhile.
class ServingProbe::ClientCpus {
 public:
  explicit ClientCpus(const State& state);
  ~ClientCpus() { sched_setaffinity(0, sizeof(before_), &before_); }

 private:
  cpu_set_t before_;
};

struct ServingProbe::State {
  State(Lab& lab, const cpu_set_t* client_cpus)
      : lab(lab),
        client_cpus(client_cpus),
        timeline(lab.config().pipeline.mini_batches),
        core(lab.config(), timeline),
        engine(MakeEngineOptions(lab.config()), lab.model(), lab.device(), lab.attention(), timeline, core) {}

  Lab& lab;
  const cpu_set_t* const client_cpus;
  Timeline timeline;
  ServingCore core;
  Engine engine;
  std::unique_ptr<ApiServer> api;
  std::unique_ptr<ApiClient> client;
  std::atomic<bool> fatal = false;
  RequestId next = 1;
};

ServingProbe::ClientCpus::ClientCpus(const State& state) {
  sched_getaffinity(0, sizeof(before_), &before_);
  if (state.client_cpus != nullptr) sched_setaffinity(0, sizeof(*state.client_cpus), state.client_cpus);
}

ServingProbe::ServingProbe(Lab& lab, const cpu_set_t* client_cpus)
    : state_(std::make_unique<State>(lab, client_cpus)) {}

Result<std::unique_ptr<ServingProbe>> ServingProbe::Make(Lab& lab, const cpu_set_t* client_cpus) {
  std::unique_ptr<ServingProbe> probe(new ServingProbe(lab, client_cpus));
  FD_RETURN_IF_ERROR(probe->Start());
  return probe;
}

Status ServingProbe::Start() {
  State& state = *state_;
  const Config& config = state.lab.config();
  ServingOutputs outputs;
  outputs.publish = [&state](std::span<const TokenUpdate> tokens, std::span<const RequestFinished> finished) {
    if (state.api != nullptr) state.api->Publish(tokens, finished);  // nobody asks before it is there
  };
  outputs.report_lost = [](int, uint32_t, const Status&) {};
  outputs.fatal = [&state](const Status&) { state.fatal = true; };
  state.core.Start(state.engine, outputs);
  state.lab.attention().HandOver();
  state.engine.Start();
  std::promise<void> joined;
  state.engine.Post([&] {
    for (size_t r = 0; r < config.rworkers.hosts.size(); ++r) {
      state.core.OnRWorkerJoined(static_cast<int>(r), state.lab.grant(static_cast<int>(r)));
    }
    joined.set_value();
  });
  joined.get_future().wait();  // the core hears of them before of any request
  FD_ASSIGN_OR_RETURN(const Secret secret, LoadSecret(config.transport.secret_file));
  const ApiServerOptions options{.listen = "tcp://127.0.0.1:0", .info = MakeServerInfo(config, FASTDECODE_VERSION)};
  FD_ASSIGN_OR_RETURN(state.api, ApiServer::Start(options, secret.key, config.model_config, state.core));
  const ClientCpus client(state);
  FD_ASSIGN_OR_RETURN(state.client, ApiClient::Connect(state.api->endpoint(), secret.key, "fastdecode-plan"));
  return OkStatus();
}

ServingProbe::~ServingProbe() {
  state_->client.reset();
  state_->core.Shutdown();
  if (state_->api != nullptr) state_->api->Stop();
  state_->engine.Stop();
  state_->lab.attention().HandOver();
}

Result<LiveRun> ServingProbe::Run(int batch, int prompt, int output) {
  State& state = *state_;
  const ClientCpus client(state);
  for (int i = 0; i < batch; ++i) {
    SubmitMessage request;
    request.id = state.next++;
    request.prompt.assign(static_cast<size_t>(prompt), 1);
    request.max_tokens = output;
    request.ignore_eos = true;
    FD_RETURN_IF_ERROR(state.client->Submit(request));
  }
  Window window(batch);
  const auto deadline = std::chrono::steady_clock::now() + kTimeout;
  for (int done = 0; done < batch;) {
    if (state.lab.stopped()) return Status(StatusCode::kCancelled, "interrupted");
    if (state.fatal) return Unavailable("the serving core of a live run stopped");
    if (std::chrono::steady_clock::now() > deadline) return Unavailable("a live run did not end within minutes");
    const Result<ServerMessage> message = state.client->Receive(kLookMs);
    if (!message.ok()) {
      if (message.status().code() != StatusCode::kWouldBlock) return message.status();
    } else if (const auto* tokens = std::get_if<TokensMessage>(&*message)) {
      window.Take(*tokens);
    } else if (const auto* finished = std::get_if<FinishedMessage>(&*message)) {
      if (finished->finish_reason == "error") return Unavailable(finished->error_message);
      window.Close();
      ++done;
    }
  }
  return window.Figures(prompt);
}

}  // namespace fastdecode::plan
