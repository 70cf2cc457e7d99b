// The R-worker as an object: main.cc wraps it in a process, tests run it in theirs.
//
// Thread rule: any one thread at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "common/base/status.h"
#include "common/config/config.h"
#include "common/config/secret.h"
#include "common/transport/transport_kind.h"
#include "kernels/dispatch.h"
#include "rworker/cpu_topology.h"
#include "rworker/pool_memory.h"

namespace fastdecode::rworker {

class ControlLoop;

struct ServerOptions {
  std::string listen;  // HOST:PORT; port 0: any free one
  Secret secret;
  MemoryAmount kv_memory;
  int64_t max_buffer_memory = int64_t{2} << 30;  // bytes of message slots that a session may ask for
  std::optional<AttentionShape> model_shape;     // the only one that is served; none: any
  int threads = 0;                               // that compute; 0: what the affinity mask and the cgroup allow
  bool pin = true;                               // each to a CPU, if there are enough
  int numa_node = kAnyNode;                      // threads and memory on this one; kAnyNode: on all that the mask has
  CpuTopology topology;                          // made up, for tests; without nodes: this machine's
  TransportSettings transport;                   // what it accepts
  bool prefault = true;                          // touch all KV memory before the first session
  std::string kernel = "auto";                   // or a name from kernel_list.inc
  std::function<bool()> stop;                    // asked while the memory is touched: true gives up the start
  int handshake_timeout_ms = 2000;
  int max_pending = 64;
};

class RWorkerServer {
 public:
  // Listens when it returns. kCancelled: options.stop said so.
  static Result<std::unique_ptr<RWorkerServer>> Start(const ServerOptions& options);
  // Says goodbye to the S-worker, ends its session and frees everything.
  ~RWorkerServer();

  const std::string& address() const { return address_; }  // the port is the real one
  int threads() const { return threads_; }
  const CpuTopology& topology() const { return topology_; }
  int64_t kv_memory() const { return memory_.bytes(); }
  std::string kernel() const { return std::string(kernel_->name); }

 private:
  RWorkerServer();
  Status ChooseNodes(const ServerOptions& options);
  Status MapMemory(const ServerOptions& options);

  std::string address_;
  int threads_ = 0;
  CpuTopology topology_;
  PoolMemory memory_;
  const kernels::AttentionKernel* kernel_ = nullptr;
  std::unique_ptr<ControlLoop> loop_;
  std::thread control_thread_;
};

}  // namespace fastdecode::rworker
