#include "rworker/server.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <random>

#include "common/base/logging.h"
#include "common/config/address.h"
#include "common/transport/carrier.h"
#include "common/transport/spin.h"
#include "common/transport/tcp/socket.h"
#include "common/wire/handshake.h"
#include "kernels/kernel_check.h"
#include "kernels/kv_codecs.h"
#include "rworker/compute_pool.h"
#include "rworker/control_loop.h"
#include "rworker/host_limits.h"

namespace fastdecode::rworker {
namespace {

constexpr int64_t kMinKvBytes = int64_t{1} << 20;

std::string Hostname() {
  char name[256] = {};
  return gethostname(name, sizeof(name) - 1) == 0 ? name : "unknown";
}

// Starts somewhere else at each start of the process: a restarted R-worker's session never
// has the number that its predecessor's had.
uint32_t FirstIncarnation() { return static_cast<uint32_t>(std::random_device{}() | 1U); }

// Gives the thread its CPUs back.
class AffinityKeeper {
 public:
  AffinityKeeper() : cpus_(AllowedCpus()) {}
  ~AffinityKeeper() { (void)BindThisThread(cpus_); }
  AffinityKeeper(const AffinityKeeper&) = delete;
  AffinityKeeper& operator=(const AffinityKeeper&) = delete;

 private:
  const std::vector<int> cpus_;
};

Result<int64_t> KvBytes(const MemoryAmount& amount) {
  if (amount.percent == 0) return amount.bytes;
  const AvailableMemory available = FindAvailableMemory();
  const int64_t bytes = available.bytes / 100 * amount.percent;
  LOG(INFO) << "KV memory: " << amount.percent << " % of the " << (available.bytes >> 20) << " MiB that are available";
  if (bytes >= kMinKvBytes) return bytes;
  return Status(StatusCode::kResourceExhausted, FormatMemoryAmount(amount) + " of the free memory is " +
                                                    std::to_string(bytes) + " bytes: " + available.source +
                                                    "; free memory");
}

}  // namespace

RWorkerServer::RWorkerServer() = default;

Result<std::unique_ptr<RWorkerServer>> RWorkerServer::Start(const ServerOptions& options) {
  FD_RETURN_IF_ERROR(InitCrypto());
  std::unique_ptr<RWorkerServer> server(new RWorkerServer());
  kernels::KernelChoice choice = kernels::ChooseAttentionKernel(options.kernel, kernels::DetectCpuFeatures());
  if (choice.kernel == nullptr) {
    return Status(options.kernel == "auto" ? StatusCode::kUnimplemented : StatusCode::kInvalidArgument, choice.error);
  }
  server->kernel_ = choice.kernel;
  FD_RETURN_IF_ERROR(Carriers(options.transport).Check(options.transport.kind));
  if (const std::string fault = kernels::FaultOfKernel(*choice.kernel); !fault.empty()) {
    return DataLoss("wrong results on this CPU: " + fault + "; start with another --kernel");
  }
  if (const std::string fault = kernels::FaultOfUserCodecs(); !fault.empty()) {
    return Internal("this build cannot be used: " + fault);
  }
  // What this thread may use now, the threads that it starts inherit.
  const AffinityKeeper keeper;
  FD_RETURN_IF_ERROR(server->ChooseNodes(options));
  server->threads_ = options.threads > 0 ? options.threads : AllowedThreads();

  // The port first: it is the cheaper of the two to fail.
  FD_ASSIGN_OR_RETURN(HostPort host_port, ParseHostPort(options.listen));
  FD_ASSIGN_OR_RETURN(Fd listener, ListenTcp(host_port));
  FD_ASSIGN_OR_RETURN(SocketAddress local, LocalAddress(listener.get()));
  std::string local_text = ToString(local);
  FD_ASSIGN_OR_RETURN(HostPort bound, ParseHostPort(local_text));
  server->address_ = HostPort{host_port.host, bound.port}.ToString();
  FD_RETURN_IF_ERROR(server->MapMemory(options));
  Fd wake(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake.valid()) return Unavailable("cannot make an event descriptor: " + DescribeErrno(errno));

  ControlLoop::Options loop;
  loop.secret = options.secret;
  loop.handshake_timeout_ms = options.handshake_timeout_ms;
  loop.max_pending = options.max_pending;
  loop.host.environment.memory = &server->memory_;
  loop.host.environment.kernel = server->kernel_;
  loop.host.environment.threads = server->threads_;
  loop.host.environment.topology = server->topology_;
  loop.host.environment.pin = options.pin;
  loop.host.transport = options.transport;
  loop.host.transport.spin_us = SpinMicroseconds(options.transport.spin_us, server->threads_);
  loop.host.max_buffer_memory = options.max_buffer_memory;
  loop.host.model_shape = options.model_shape;
  loop.host.kv_memory = server->memory_.bytes();
  loop.host.hostname = Hostname();
  loop.host.kernel = server->kernel();
  loop.host.first_incarnation = FirstIncarnation();
  server->loop_ = std::make_unique<ControlLoop>(loop, std::move(listener), std::move(wake), SteadyClock::Get());
  server->control_thread_ = std::thread([raw = server->loop_.get()] { raw->Run(); });
  return server;
}

Status RWorkerServer::ChooseNodes(const ServerOptions& options) {
  topology_ = options.topology.nodes.empty() ? ReadCpuTopology(AllowedCpus()) : options.topology;
  if (options.numa_node != kAnyNode) {
    FD_ASSIGN_OR_RETURN(topology_, OnlyNode(topology_, options.numa_node));
    const int error = BindThisThread(topology_.nodes.front().cpus);
    if (error != 0) return Internal("cannot run on the CPUs of that node alone: " + DescribeErrno(error));
  }
  LOG_IF(INFO, topology_.nodes.front().id != kAnyNode) << topology_.ToString();
  return OkStatus();
}

Status RWorkerServer::MapMemory(const ServerOptions& options) {
  PoolOptions pool;
  FD_ASSIGN_OR_RETURN(pool.bytes, KvBytes(options.kv_memory));
  pool.prefault_threads = options.prefault ? threads_ : 0;
  pool.topology = topology_;
  pool.strict_nodes = options.numa_node != kAnyNode;
  pool.stop = options.stop;
  FD_ASSIGN_OR_RETURN(memory_, PoolMemory::Map(pool));
  return OkStatus();
}

RWorkerServer::~RWorkerServer() {
  if (!control_thread_.joinable()) return;
  loop_->Stop();
  control_thread_.join();
}

}  // namespace fastdecode::rworker
