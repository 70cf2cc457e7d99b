// From the config to the options of scheduler, sessions and engine.
#include <algorithm>
#include <utility>

#include "common/transport/spin.h"
#include "sworker/serving/serving_core.h"

namespace fastdecode {
namespace {

int RowsOfMiniBatch(const PipelineOptions& pipeline) {
  return (pipeline.max_batch + pipeline.mini_batches - 1) / pipeline.mini_batches;
}

}  // namespace

SchedulerOptions MakeSchedulerOptions(const Config& config) {
  SchedulerOptions options;
  options.mini_batches = config.pipeline.mini_batches;
  options.max_batch = config.pipeline.max_batch;
  options.prefill_tokens_per_step = config.pipeline.prefill_tokens_per_step;
  options.max_context = config.max_context;
  options.block_tokens = config.rworkers.block_tokens;
  options.num_rworkers = static_cast<int>(config.rworkers.hosts.size());
  options.load_control = config.load_control.enabled;
  options.workload_limit = config.load_control.workload_limit;
  options.interval_steps = config.load_control.interval_steps;
  return options;
}

SessionOptions MakeSessionOptions(const Config& config) {
  SessionOptions options;
  options.shape = config.model_config.attention;
  options.block_tokens = config.rworkers.block_tokens;
  options.kv = {kernels::CodeOf(config.rworkers.kv_dtype.keys), kernels::CodeOf(config.rworkers.kv_dtype.values)};
  options.max_context = config.max_context;
  options.max_sequences = MaxHeld(config.pipeline.max_batch);
  options.mini_batches = config.pipeline.mini_batches;
  options.max_rows = RowsOfMiniBatch(config.pipeline);
  options.heartbeat_ms = config.transport.heartbeat_ms;
  options.peer_timeout_ms = config.transport.peer_timeout_ms;
  options.transport = MakeTransportSettings(config.transport);
  options.transport.spin_us = SpinMicroseconds(options.transport.spin_us, SWorkerThreads(config));
  options.name = config.sworker.listen;
  return options;
}

ServerInfo MakeServerInfo(const Config& config, std::string version) {
  ServerInfo info;
  info.version = std::move(version);
  info.model_path = config.model.path;
  info.model_type = config.model_config.model_type;
  info.vocab_size = config.model_config.vocab_size;
  info.max_context = config.max_context;
  info.max_batch = config.pipeline.max_batch;
  info.bos_token_id = config.model_config.bos_token_id;
  info.eos_token_ids = config.model_config.eos_token_ids;
  return info;
}

EngineOptions MakeEngineOptions(const Config& config) {
  EngineOptions options;
  options.mini_batches = config.pipeline.mini_batches;
  options.max_rows = RowsOfMiniBatch(config.pipeline);
  options.max_prefill_tokens = std::max(config.pipeline.prefill_tokens_per_step, config.max_context);
  options.max_prefill_prompts = config.pipeline.max_batch;
  return options;
}

}  // namespace fastdecode
