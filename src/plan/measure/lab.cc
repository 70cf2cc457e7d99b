#include "plan/measure/lab.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>

#include "common/base/logging.h"
#include "sworker/serving/serving_core.h"

namespace fastdecode::plan {
namespace {

constexpr std::chrono::seconds kJoinTimeout{30};
constexpr uint16_t kCachedValue = 0x2e66;  // 0.1 as f16: what the cached keys and values are

double Seconds(int64_t ns) { return static_cast<double>(ns) / 1e9; }

Config WithoutLoadControl(Config config) {
  config.load_control.enabled = false;
  return config;
}

}  // namespace

Lab::Lab(const Config& config, const std::atomic<int>& stop)
    : config_(WithoutLoadControl(config)),
      stop_(stop),
      max_rows_(MakeEngineOptions(config).max_rows),
      attention_(MakeSessionOptions(config), static_cast<int>(config.rworkers.hosts.size())),
      grants_(config.rworkers.hosts.size()) {
  Request request;
  request.sampling.ignore_eos = true;
  request_ = std::make_shared<const Request>(request);
}

Lab::~Lab() {
  pool_.reset();
  if (stream_ != nullptr) stream_->Synchronize();
}

Result<std::unique_ptr<Lab>> Lab::Make(const Config& config, const std::atomic<int>& stop) {
  std::unique_ptr<Lab> lab(new Lab(config, stop));
  FD_RETURN_IF_ERROR(lab->Start());
  return lab;
}

Status Lab::Start() {
  FD_ASSIGN_OR_RETURN(const Secret secret, LoadSecret(config_.transport.secret_file));
  FD_ASSIGN_OR_RETURN(device_, MakeDeviceRuntime(config_.sworker.device, SWorkerThreads(config_), config_.sworker.pin));
  FD_ASSIGN_OR_RETURN(model_, LoadModel(config_, *device_));
  stream_ = device_->MakeStream();
  context_.reset(new EngineContext{*model_, *device_, *stream_, attention_, completions_});
  for (int m = 0; m < config_.pipeline.mini_batches; ++m) {
    passes_.push_back(std::make_unique<DecodePass>(*context_, m, max_rows_));
  }
  const EngineOptions options = MakeEngineOptions(config_);
  prefill_buffers_ =
      std::make_unique<PrefillBuffers>(*device_, options.max_prefill_tokens, options.max_prefill_prompts);
  RWorkerCallbacks callbacks;
  callbacks.on_joined = [this](int index, const RWorkerGrant& grant, std::unique_ptr<Endpoint> endpoint) {
    std::lock_guard lock(mutex_);
    grants_[static_cast<size_t>(index)] = grant;
    joined_.emplace_back(index, std::move(endpoint));
  };
  callbacks.on_lost = [this](int, uint32_t, const Status& reason) {
    std::lock_guard lock(mutex_);
    losses_.push_back(reason);
  };
  std::vector<std::string> addresses;
  for (const RWorkerHost& host : config_.rworkers.hosts) addresses.push_back(host.address);
  FD_ASSIGN_OR_RETURN(pool_,
                      RWorkerPool::Start(
                          addresses, secret, MakeSessionOptions(config_),
                          [this](size_t bytes) { return device_->AllocatePinned(bytes); }, std::move(callbacks)));
  return JoinAll();
}

Status Lab::JoinAll() {
  if (!pool_->WaitAllJoined(kJoinTimeout)) {
    std::string text = "not every R-worker could be reached:";
    for (const RWorkerPool::Missing& missing : pool_->missing()) {
      text += "\n  " + missing.address + ": " + missing.reason.message();
    }
    return Unavailable(text);
  }
  std::lock_guard lock(mutex_);
  for (auto& [index, endpoint] : joined_) attention_.Join(index, std::move(endpoint));
  joined_.clear();
  return OkStatus();
}

Status Lab::Fault() {
  if (stopped()) return Status(StatusCode::kCancelled, "interrupted");
  if (!lost_.ok()) return lost_;
  if (Status status = stream_->TakeError(); !status.ok()) return status;
  std::lock_guard lock(mutex_);
  return losses_.empty() ? OkStatus() : Unavailable("an R-worker was lost: " + losses_.front().message());
}

bool Lab::Move(const std::function<void(const StageEnd&)>& on_stage,
               const std::function<void(AttentionEvent&)>& on_event) {
  completions_.Take(&ends_);
  bool moved = !ends_.empty();
  for (const StageEnd& end : ends_) on_stage(end);
  while (std::optional<AttentionEvent> event = attention_.Poll()) {
    moved = true;
    if (event->kind == AttentionEvent::Kind::kPrefillDone) ++cached_;
    if (event->kind == AttentionEvent::Kind::kFreed) ++freed_;
    if (event->kind == AttentionEvent::Kind::kLost) {
      lost_ = Unavailable("R-worker " + grant(event->rworker).address + " was lost: " + event->reason.message());
    } else {
      on_event(*event);
    }
  }
  return moved;
}

void Lab::Sleep() {
  std::vector<int> fds{completions_.wake_fd()};
  if (!attention_.PrepareWait(&fds)) return;
  std::vector<pollfd> polls;
  for (const int fd : fds) polls.push_back({.fd = fd, .events = POLLIN, .revents = 0});
  constexpr int kWaitMs = 1000;  // a loss on the control connection wakes nobody here
  if (::poll(polls.data(), static_cast<nfds_t>(polls.size()), kWaitMs) > 0 && (polls[0].revents & POLLIN) != 0) {
    completions_.ClearWake();
  }
}

Status Lab::Await(const size_t* events, size_t count) {
  while (*events < count) {
    FD_RETURN_IF_ERROR(Fault());
    if (!Move([](const StageEnd&) {}, [](AttentionEvent&) {})) Sleep();
  }
  return OkStatus();
}

Status Lab::PushCache(int rworker, SequenceId sequence, int context) {
  const auto width = static_cast<size_t>(2 * config_.model_config.attention.kv_width());
  for (int layer = 0; layer < config_.model.layers; ++layer) {
    for (int begin = 0; begin < context;) {
      const Result<HostRows> piece = attention_.AcquireKv(rworker);
      if (!piece.ok()) {
        FD_RETURN_IF_ERROR(Fault());
        if (!Move([](const StageEnd&) {}, [](AttentionEvent&) {})) Sleep();
        continue;
      }
      const int rows = std::min(attention_.max_push_rows(), context - begin);
      if (!piece->lost) {
        auto* values = reinterpret_cast<uint16_t*>(piece->data);
        std::fill_n(values, static_cast<size_t>(rows) * width, kCachedValue);
      }
      FD_RETURN_IF_ERROR(attention_.SubmitKv(*piece, sequence, layer, begin, rows));
      begin += rows;
    }
  }
  for (;;) {
    const Status status = attention_.FinishPrefill(rworker, sequence, context);
    if (status.code() != StatusCode::kWouldBlock) return status;
    FD_RETURN_IF_ERROR(Fault());
    if (!Move([](const StageEnd&) {}, [](AttentionEvent&) {})) Sleep();
  }
}

Status Lab::FreeAll(int rworker, std::span<const SequenceId> sequences) {
  freed_ = 0;
  for (const SequenceId sequence : sequences) attention_.Free(rworker, sequence);
  return Await(&freed_, sequences.size());
}

namespace {

// Follows the passes of one run, and keeps their times.
class Recorder {
 public:
  Recorder(std::vector<std::unique_ptr<DecodePass>>& passes, int mini_batches, int layers, int count)
      : passes_(passes), layers_(layers), count_(count), runs_(static_cast<size_t>(mini_batches)) {}

  struct Run {
    std::vector<DecodePass::Row> rows;
    int stage = 0;
    int done = 0;  // passes
    int64_t begin_ns = 0, end_ns = 0, attend_ns = 0;
    double outer_s = 0;
    std::vector<double> layer;  // of this pass
  };
  std::vector<Run>& runs() { return runs_; }
  bool finished() const {
    return std::all_of(runs_.begin(), runs_.end(), [&](const Run& run) { return run.done >= count_; });
  }

  // True: the mini-batch is ready for its next pass.
  bool StageDone(const StageEnd& end) {
    Run& run = runs_[static_cast<size_t>(end.id.index)];
    const StageTimes& times = end.times;
    const double compute = Seconds(times.computed_ns - times.copied_in_ns);
    const bool keep = Keeps(run);
    if (run.stage > 0 && run.stage <= layers_ && keep) {
      record_.wire.push_back(std::max(1e-9, Seconds(times.begin_ns - run.end_ns - run.attend_ns)));
    }
    if (run.stage > 0 && run.stage < layers_) {
      run.layer.push_back(compute);
      if (keep) {
        record_.layer.push_back(compute);
        record_.copy_in.push_back(Seconds(times.copied_in_ns - times.begin_ns));
        record_.copy_out.push_back(Seconds(times.end_ns - times.computed_ns));
      }
    } else {
      run.outer_s += compute;
      if (run.stage == 0) embedding_copy_ = Seconds(times.copied_in_ns - times.begin_ns);
    }
    run.end_ns = times.end_ns;
    DecodePass& pass = *passes_[static_cast<size_t>(end.id.index)];
    pass.StageDone();
    ++run.stage;
    if (pass.state() != DecodePass::State::kDone) return false;
    EndPass(&run, keep);
    pass.Reset();
    return run.done < count_;
  }

  void Attended(const AttentionEvent& event) {
    Run& run = runs_[static_cast<size_t>(event.mini_batch)];
    run.attend_ns = event.info.compute_ns;
    if (Keeps(run)) record_.attend.push_back(Seconds(event.info.compute_ns));
  }

  PassRecord Take() { return std::move(record_); }

 private:
  // Not the first pass, nor those at the end where the others may have stopped.
  bool Keeps(const Run& run) const { return run.done >= 1 && run.done + 1 < count_; }

  void EndPass(Run* run, bool keep) {
    if (keep) {
      record_.pass.push_back(Seconds(run->end_ns - run->begin_ns));
      double tokens = 0;
      for (const DecodePass::Row& row : run->rows) tokens += static_cast<double>(row.position) + 1;
      kept_tokens_ += tokens;
      record_.tokens = kept_tokens_ / static_cast<double>(record_.pass.size());
      // With one layer there is no stage between the first and the last: the two are its S-part.
      const double layer = run->layer.empty() ? 0 : run->layer[run->layer.size() / 2];
      record_.outer.push_back(std::max(1e-9, run->outer_s + embedding_copy_ - layer));
    }
    ++run->done;
    run->stage = 0;
    run->outer_s = 0;
    run->layer.clear();
    for (DecodePass::Row& row : run->rows) {
      ++row.position;
      ++row.sampled;
    }
  }

  std::vector<std::unique_ptr<DecodePass>>& passes_;
  const int layers_;
  const int count_;
  std::vector<Run> runs_;
  PassRecord record_;
  double kept_tokens_ = 0;
  double embedding_copy_ = 0;
};

}  // namespace

Result<PassRecord> Lab::RunPasses(int rworker, int mini_batches, int rows, int context, int passes) {
  Recorder recorder(passes_, mini_batches, config_.model.layers, passes);
  std::vector<SequenceId> all;
  cached_ = 0;
  for (Recorder::Run& run : recorder.runs()) {
    for (int i = 0; i < rows; ++i) {
      const SequenceId sequence = next_sequence_++;
      FD_RETURN_IF_ERROR(PushCache(rworker, sequence, context));
      run.rows.push_back({.sequence = sequence,
                          .rworker = rworker,
                          .position = context,
                          .token = static_cast<int32_t>((7 * i + 11) % config_.model_config.vocab_size),
                          .sampled = 1,
                          .request = request_});
      all.push_back(sequence);
    }
  }
  FD_RETURN_IF_ERROR(Await(&cached_, all.size()));
  const auto start = [&](size_t m) {
    recorder.runs()[m].begin_ns = NowNs();
    passes_[m]->Start(++next_step_, recorder.runs()[m].rows);
  };
  for (size_t m = 0; m < recorder.runs().size(); ++m) start(m);
  while (!recorder.finished()) {
    FD_RETURN_IF_ERROR(Fault());
    const bool moved = Move(
        [&](const StageEnd& end) {
          if (recorder.StageDone(end)) start(static_cast<size_t>(end.id.index));
        },
        [&](AttentionEvent& event) {
          if (event.kind != AttentionEvent::Kind::kAttended) return;
          recorder.Attended(event);
          passes_[static_cast<size_t>(event.mini_batch)]->Attended(event);
        });
    for (size_t m = 0; m < recorder.runs().size(); ++m) passes_[m]->Advance();
    if (!moved) Sleep();
  }
  FD_RETURN_IF_ERROR(FreeAll(rworker, all));
  return recorder.Take();
}

Result<PrefillRecord> Lab::RunPrefill(int rworker, int prompts, int tokens) {
  std::vector<PrefillRequest> requests;
  std::vector<SequenceId> sequences;
  for (int i = 0; i < prompts; ++i) {
    Request request = *request_;
    request.id = next_sequence_++;
    for (int t = 0; t <= tokens; ++t) {  // the last one is not prefilled
      request.prompt.push_back(static_cast<int32_t>((t * 13 + i) % config_.model_config.vocab_size));
    }
    sequences.push_back(request.id);
    requests.push_back({std::make_shared<const Request>(std::move(request)), rworker});
  }
  PrefillRecord record;
  const int layers = config_.model.layers;
  std::vector<double> computed;  // by layer
  double pushed = 0;
  const int64_t start_ns = NowNs();
  PrefillBatch batch(*context_, *prefill_buffers_, std::move(requests));
  batch.Advance();
  while (!batch.done()) {
    FD_RETURN_IF_ERROR(Fault());
    const bool moved = Move(
        [&](const StageEnd& end) {
          const double seconds = Seconds(end.times.end_ns - end.times.begin_ns);
          if (end.id.owner == StageId::Owner::kPrefill) {
            computed.push_back(seconds);
            batch.ComputeDone();
          } else {
            pushed += seconds;
            batch.PushDone(end.id.index);
          }
        },
        [&](AttentionEvent& event) {
          if (event.kind == AttentionEvent::Kind::kPrefillDone) batch.Pushed(event.sequence);
        });
    batch.Advance();
    if (!moved) Sleep();
  }
  const double wall = Seconds(NowNs() - start_ns);
  // The last layer's stage is short: nothing is computed there but K and V. A model of one layer has no other.
  const double middle = computed[static_cast<size_t>(layers - 1) / 2];
  record.layer = std::max(1e-9, middle + pushed / layers);
  record.outer = std::max(1e-6, wall - (layers - 1) * record.layer);
  FD_RETURN_IF_ERROR(FreeAll(rworker, sequences));
  return record;
}

}  // namespace fastdecode::plan
