// The S-worker's R-workers: dials them all, keeps them under watch, and hands each one's
// data path (an Endpoint) to the engine.
//
// One control thread does all of it and never computes, so that a long prefill doesn't
// look like death. R-workers are known by their index in the list of addresses. A lost
// one is dialled again for ever; it comes back with a new incarnation, and nothing of
// its old life is believed.
//
// For each R-worker the calls alternate: on_joined, on_lost, on_joined, ... Each
// on_joined is followed by exactly one on_lost, whoever noticed first (the control
// connection, heartbeats or ReportLost), except when the pool is destroyed first.
//
// Thread rule: callbacks run on the control thread and must not block; all public
// functions may be called from any thread, the destructor not from a callback.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/config/secret.h"
#include "common/transport/carrier.h"
#include "common/transport/transport.h"
#include "sworker/rworkers/session_options.h"

namespace fastdecode {

// What an R-worker granted for this session.
struct RWorkerGrant {
  uint32_t incarnation = 0;
  std::string address;                             // as configured
  int64_t kv_blocks = 0;                           // of block_tokens tokens, over all layers
  int64_t kv_memory = 0;                           // bytes
  int64_t kv_token_bytes = 0;                      // of a cached token, all layers
  int threads = 0;                                 // that compute
  std::string hostname;                            // what the R-worker calls its host
  std::string kernel;                              // "avx2", ...
  TransportKind transport = TransportKind::kAuto;  // that carries the rows
  std::string transport_why;                       // and not another
};

// From the latest heartbeat of an R-worker.
struct RWorkerStats {
  uint32_t incarnation = 0;                                    // 0: not joined
  TransportKind transport = TransportKind::kAuto;              // that carries the rows; auto: not joined
  std::shared_ptr<const std::string> transport_why;            // and not another; null: not joined
  std::array<int64_t, kMaxTransportKind + 1> sessions_over{};  // by kind, since this process began
  int64_t received_ns = 0;                                     // SteadyClock
  int64_t free_blocks = 0;
  int64_t total_blocks = 0;
  int64_t sequences = 0;           // that it holds
  int64_t workload = 0;            // W now: cached tokens of the sequences being decoded, over all mini-batches
  int64_t peak_workload = 0;       // since the session began
  int64_t rows = 0;                // rows attended, all layers, since the session began
  int64_t steps = 0;               // passes begun
  int64_t kv_tokens_appended = 0;  // by prefill, summed over the layers
  int64_t compute_ns = 0;          // in the kernels
  int64_t kv_token_bytes = 0;      // of a cached token, all layers; as granted
  int64_t kv_beyond_range = 0;     // elements of K and V that the cache's formats could not hold and saturated
};

struct RWorkerCallbacks {
  // The endpoint is the receiver's; it keeps its slot memory alive itself. Destroy it
  // soon after on_lost: only then are its sockets closed.
  std::function<void(int index, const RWorkerGrant& grant, std::unique_ptr<Endpoint> endpoint)> on_joined;
  std::function<void(int index, uint32_t incarnation, const Status& reason)> on_lost;
};

class RWorkerPool {
 public:
  // Checks the options and addresses ("HOST:PORT", "[v6]:PORT"), then starts dialling.
  static Result<std::unique_ptr<RWorkerPool>> Start(std::vector<std::string> addresses, const Secret& secret,
                                                    const SessionOptions& options, AllocateSlots allocate,
                                                    RWorkerCallbacks callbacks);
  // Says goodbye to every R-worker. Endpoints already handed out must not be needed any
  // more, but may go later: a stream that closes first looks like a crash to the R-worker.
  virtual ~RWorkerPool() = default;

  // The data path of this incarnation failed: closes its control connection and dials
  // again. Late calls about an earlier incarnation do nothing.
  virtual void ReportLost(int index, uint32_t incarnation, const Status& reason) = 0;

  virtual RWorkerStats stats(int index) const = 0;

  // Those not joined now and why, in words for the user.
  struct Missing {
    int index = -1;
    std::string address;
    Status reason;
  };
  virtual std::vector<Missing> missing() const = 0;
  // True once all are joined; false after `timeout`, or at once when a refusal came
  // that waiting does not mend (wrong secret, version, shape, too little memory).
  virtual bool WaitAllJoined(std::chrono::milliseconds timeout) = 0;

  virtual int size() const = 0;
};

}  // namespace fastdecode
