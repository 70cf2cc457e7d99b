// fastdecode-rworker: holds the KV cache and computes attention for one S-worker at a time.
#include <gflags/gflags.h>
#include <pthread.h>

#include <csignal>
#include <cstdio>
#include <optional>
#include <string>

#include "common/base/logging.h"
#include "common/config/config.h"
#include "common/config/secret.h"
#include "common/flags/parse_flags.h"
#include "rworker/self_test/self_test.h"
#include "rworker/server.h"

DEFINE_string(listen, "127.0.0.1:7200", "HOST:PORT to listen on; port 0 picks one, which the ready line names");
DEFINE_string(kv_memory, "1GiB",
              "memory of the KV cache: bytes, with KiB, MiB or GiB, or a share of the free memory such as 80%");
DEFINE_string(max_buffer_memory, "2GiB", "what a session's message buffers may take beside it");
DEFINE_string(model_shape, "",
              "serve only S-workers of this shape: layers x query heads x KV heads x head_dim, as in 32x32x8x128; "
              "empty: of any");
DEFINE_int32(threads, 0, "threads that compute; 0: as many as this process may use CPUs");
DEFINE_string(secret_file, "", "file with the cluster's secret, mode 0600");
DEFINE_string(transport, "auto",
              "of the rows: auto (what the S-worker names, or the best that both have), tcp, shm or verbs");
DEFINE_int32(spin_us, -1, "microseconds to poll for messages before sleeping (shm, verbs); -1: if a CPU is to spare");
DEFINE_string(verbs_device, "auto", "RDMA device by name; auto: the first with an active port");
DEFINE_int32(verbs_port, 1, "port of the RDMA device");
DEFINE_int32(verbs_gid_index, -1, "of the RDMA port's GIDs; -1: by type, RoCE v2 with an IPv4 address first");
DEFINE_string(kernel, "auto", "attention kernel: auto, or one by name");
DEFINE_int32(numa_node, -1,
             "threads and memory on this NUMA node alone; -1: on all nodes of this process's CPUs, evenly");
DEFINE_bool(self_test, false, "measure this host, say what to mend, and end; listens nowhere");
DEFINE_string(self_test_shapes, "32x32x128,32x8x128,64x8x128",
              "of attention: query heads x KV heads x head_dim, with commas between");
DEFINE_double(self_test_seconds, 60, "begin no measurement later than that");
DEFINE_bool(pin, true, "pin each computing thread to a CPU where there are enough");

namespace fastdecode::rworker {
namespace {

constexpr int kExitUnfit = 1;
constexpr int kExitUsage = 2;
constexpr int kExitCouldNotStart = 3;

int UsageError(const std::string& message) {
  std::fprintf(stderr, "fastdecode-rworker: %s\nTry fastdecode-rworker --help.\n", message.c_str());
  return kExitUsage;
}

Status CheckNumbers() {
  if (FLAGS_threads < 0 || FLAGS_threads > 4096) return InvalidArgument("--threads is out of 0 to 4096");
  if (FLAGS_spin_us < -1 || FLAGS_spin_us > 1000) return InvalidArgument("--spin_us is out of -1 to 1000");
  if (FLAGS_numa_node < kAnyNode) return InvalidArgument("--numa_node is neither a node nor -1");
  if (FLAGS_verbs_port < 1 || FLAGS_verbs_port > 255) return InvalidArgument("--verbs_port is out of 1 to 255");
  if (FLAGS_verbs_gid_index < -1 || FLAGS_verbs_gid_index > 255) {
    return InvalidArgument("--verbs_gid_index is out of 0 to 255 and not -1");
  }
  return OkStatus();
}

// Exit status.
Result<int> SelfTest() {
  FD_RETURN_IF_ERROR(CheckNumbers());
  if (!(FLAGS_self_test_seconds > 0 && FLAGS_self_test_seconds <= 3600)) {
    return InvalidArgument("--self_test_seconds is out of 0 to 3600");
  }
  SelfTestOptions options;
  FD_ASSIGN_OR_RETURN(options.shapes, ParseShapes(FLAGS_self_test_shapes));
  options.threads = FLAGS_threads;
  options.numa_node = FLAGS_numa_node;
  options.seconds = FLAGS_self_test_seconds;
  options.kernel = FLAGS_kernel;
  FLAGS_minloglevel = google::GLOG_ERROR;  // what the log would say is part of the report
  FD_ASSIGN_OR_RETURN(const bool fine, RunSelfTest(options, stdout));
  return fine ? 0 : kExitUnfit;
}

Result<ServerOptions> OptionsFromFlags() {
  FD_RETURN_IF_ERROR(CheckNumbers());
  if (FLAGS_secret_file.empty()) return InvalidArgument("--secret_file is missing: a port serves nobody without one");
  ServerOptions options;
  const Result<TransportKind> kind = ParseTransportKind(FLAGS_transport);
  if (!kind.ok()) return InvalidArgument("--transport: " + kind.status().message());
  options.transport.kind = *kind;
  options.transport.verbs.device = FLAGS_verbs_device;
  options.transport.verbs.port = FLAGS_verbs_port;
  options.transport.verbs.gid_index = FLAGS_verbs_gid_index;
  options.transport.spin_us = FLAGS_spin_us;
  options.listen = FLAGS_listen;
  if (!FLAGS_model_shape.empty()) {
    FD_ASSIGN_OR_RETURN(options.model_shape, ParseShape(FLAGS_model_shape));
  }
  options.threads = FLAGS_threads;
  options.kernel = FLAGS_kernel;
  options.pin = FLAGS_pin;
  options.numa_node = FLAGS_numa_node;
  FD_ASSIGN_OR_RETURN(options.kv_memory, ParseMemoryAmount(FLAGS_kv_memory));
  FD_ASSIGN_OR_RETURN(options.max_buffer_memory, ParseSize(FLAGS_max_buffer_memory));
  FD_ASSIGN_OR_RETURN(options.secret, LoadSecret(FLAGS_secret_file));
  return options;
}

int Main() {
  if (FLAGS_self_test) {
    const Result<int> status = SelfTest();
    return status.ok() ? *status : UsageError(status.status().message());
  }
  // Before any thread starts, so that only sigwait below gets them.
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);

  Result<ServerOptions> options = OptionsFromFlags();
  if (!options.ok()) return UsageError(options.status().message());
  // The signals stay blocked: a start that takes long looks whether one is waiting.
  options->stop = [] {
    sigset_t waiting;
    return sigpending(&waiting) == 0 && (sigismember(&waiting, SIGTERM) == 1 || sigismember(&waiting, SIGINT) == 1);
  };
  Result<std::unique_ptr<RWorkerServer>> server = RWorkerServer::Start(*options);
  if (server.status().code() == StatusCode::kCancelled) {
    LOG(INFO) << "shutting down before the start was done: " << server.status().message();
    return 0;
  }
  if (!server.ok()) {
    std::fprintf(stderr, "fastdecode-rworker: %s\n", server.status().message().c_str());
    return server.status().code() == StatusCode::kInvalidArgument ? kExitUsage : kExitCouldNotStart;
  }
  std::printf("ready fastdecode-rworker %s threads=%d kv_memory=%lld kernel=%s\n", (*server)->address().c_str(),
              (*server)->threads(), static_cast<long long>((*server)->kv_memory()), (*server)->kernel().c_str());
  std::fflush(stdout);
  int signal = 0;
  sigwait(&signals, &signal);
  LOG(INFO) << (signal == SIGTERM ? "SIGTERM" : "SIGINT") << ": shutting down";
  return 0;
}

}  // namespace
}  // namespace fastdecode::rworker

int main(int argc, char** argv) {
  fastdecode::InitLogging(argv[0]);
  const fastdecode::ProgramText text{
      "fastdecode-rworker",
      "Holds the KV cache and computes attention for one S-worker at a time.\n"
      "  fastdecode-rworker --listen HOST:PORT --kv_memory 8GiB --threads N --secret_file F\n"
      "  fastdecode-rworker --self-test\n"
      "Prints one line that starts with \"ready\" when it listens; ends on SIGTERM and SIGINT.\n"
      "Exit status: 0 ended as asked, 1 the self-test found this host unfit, 2 usage, 3 could not start."};
  if (std::optional<int> status = fastdecode::ParseFlags(text, &argc, &argv)) return *status;
  return fastdecode::rworker::Main();
}
