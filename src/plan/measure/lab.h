// The S-worker's own parts, put together for measuring: device, model, R-workers and
// decode passes as the engine has them, but with sequences and lengths that the caller
// chooses and with every stage's times kept.
//
// Thread rule: one thread, which plays the engine's.
#pragma once

#include <poll.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/config/config.h"
#include "common/config/secret.h"
#include "sworker/attention/remote_attention.h"
#include "sworker/device/device_runtime.h"
#include "sworker/engine/decode_pass.h"
#include "sworker/engine/engine_context.h"
#include "sworker/engine/prefill_batch.h"
#include "sworker/model/model.h"
#include "sworker/rworkers/rworker_pool.h"

namespace fastdecode::plan {

// Seconds of each occurrence, the first pass of each mini-batch and the last ones left out.
struct PassRecord {
  std::vector<double> layer;     // the compute of a stage: one layer's S-part
  std::vector<double> copy_in;   // of such a stage
  std::vector<double> copy_out;  // of such a stage
  std::vector<double> outer;     // compute of a pass's first, last and sampling stage, less one layer
  std::vector<double> attend;    // of one exchange: in the R-worker's kernels
  std::vector<double> wire;      // from a stage's end to the begin of the next one, less `attend`
  std::vector<double> pass;      // from its begin to its tokens
  double tokens = 0;             // mean cached tokens that an exchange's rows attend to
};

struct PrefillRecord {
  double layer = 0;  // device time of one layer but the last, pushes included
  double outer = 0;  // what the whole takes beyond all layers but the last
};

class Lab {
 public:
  // Loads the model and joins every R-worker of `config`. `stop`, once not 0, ends every wait.
  static Result<std::unique_ptr<Lab>> Make(const Config& config, const std::atomic<int>& stop);
  ~Lab();

  const Config& config() const { return config_; }
  const RWorkerGrant& grant(int rworker) const { return grants_[static_cast<size_t>(rworker)]; }
  std::string device_description() const { return device_->description(); }
  int max_rows() const { return max_rows_; }  // of a mini-batch

  // `passes` passes of `mini_batches` mini-batches of `rows` sequences each, that have
  // `context` tokens cached on this R-worker when they start.
  Result<PassRecord> RunPasses(int rworker, int mini_batches, int rows, int context, int passes);
  // One batch of prompts of which `tokens` each are prefilled.
  Result<PrefillRecord> RunPrefill(int rworker, int prompts, int tokens);

  bool stopped() const { return stop_.load() != 0; }

  // For a live run: the parts that an Engine takes over. The lab must not be used meanwhile.
  const Model& model() const { return *model_; }
  DeviceRuntime& device() { return *device_; }
  RemoteAttention& attention() { return attention_; }

 private:
  Lab(const Config& config, const std::atomic<int>& stop);
  Status Start();
  Status JoinAll();
  bool Move(const std::function<void(const StageEnd&)>& on_stage, const std::function<void(AttentionEvent&)>& on_event);
  void Sleep();
  Status PushCache(int rworker, SequenceId sequence, int context);
  Status Await(const size_t* events, size_t count);
  Status FreeAll(int rworker, std::span<const SequenceId> sequences);
  Status Fault();

  const Config config_;
  const std::atomic<int>& stop_;
  const int max_rows_;
  std::unique_ptr<DeviceRuntime> device_;
  std::unique_ptr<Model> model_;
  RemoteAttention attention_;
  std::unique_ptr<DeviceStream> stream_;
  CompletionQueue completions_;
  std::unique_ptr<EngineContext> context_;
  std::vector<std::unique_ptr<DecodePass>> passes_;
  std::unique_ptr<PrefillBuffers> prefill_buffers_;
  std::vector<RWorkerGrant> grants_;
  std::vector<StageEnd> ends_;
  SequenceId next_sequence_ = SequenceId{1} << 40;  // clients' requests count from 1
  uint64_t next_step_ = 0;
  size_t cached_ = 0, freed_ = 0;           // sequences of which the R-worker has said so
  std::shared_ptr<const Request> request_;  // every row's
  Status lost_;

  std::mutex mutex_;
  std::vector<std::pair<int, std::unique_ptr<Endpoint>>> joined_;  // guarded by mutex_
  std::vector<Status> losses_;                                     // guarded by mutex_
  std::unique_ptr<RWorkerPool> pool_;                              // last: its callbacks use the rest
};

}  // namespace fastdecode::plan
