// The S-worker's real API over a core without a model, for the clients' tests.
//
//   echo_api_server LISTEN SECRET_FILE MODEL_FOLDER MAX_CONTEXT PASS_US
//
// Prints "ready ADDRESS"; serves until SIGTERM.
#include <signal.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "common/base/logging.h"
#include "common/config/secret.h"
#include "tests/support/echo_sink.h"

namespace {

int Fail(const fastdecode::Status& status) {
  std::fprintf(stderr, "echo_api_server: %s\n", status.ToString().c_str());
  return 2;
}

}  // namespace

int main(int argc, char** argv) {
  using namespace fastdecode;
  InitLogging(argv[0]);
  if (argc != 6) return Fail(InvalidArgument("LISTEN SECRET_FILE MODEL_FOLDER MAX_CONTEXT PASS_US"));
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);

  const Result<Secret> secret = LoadSecret(argv[2]);
  if (!secret.ok()) return Fail(secret.status());
  const Result<ModelConfig> model = LoadModelConfig(argv[3]);
  if (!model.ok()) return Fail(model.status());
  ApiServerOptions options;
  options.listen = argv[1];
  options.info.version = "echo";
  options.info.model_path = std::filesystem::absolute(argv[3]).string();
  options.info.model_type = model->model_type;
  options.info.vocab_size = model->vocab_size;
  options.info.max_context = std::atoi(argv[4]);
  options.info.max_batch = 64;
  options.info.bos_token_id = model->bos_token_id;
  options.info.eos_token_ids = model->eos_token_ids;

  EchoSink sink{std::chrono::microseconds(std::atoi(argv[5]))};
  Result<std::unique_ptr<ApiServer>> server = ApiServer::Start(options, secret->key, *model, sink);
  if (!server.ok()) return Fail(server.status());
  sink.StartPublishing(**server);
  std::printf("ready %s\n", (*server)->endpoint().c_str());
  std::fflush(stdout);
  int signal = 0;
  sigwait(&signals, &signal);
  (*server)->StopAccepting();
  sink.Stop();
  (*server)->Stop();
  return 0;
}
