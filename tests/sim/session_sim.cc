#include "tests/sim/session_sim.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <random>

#include "common/base/clock.h"
#include "common/base/logging.h"

namespace fastdecode {
namespace {

constexpr AttentionShape kShape{2, 4, 2, 16};
constexpr int kMiniBatches = 2;
constexpr int kMaxPrompt = 70, kMaxSteps = 25;
constexpr int64_t kPatienceNs = 20'000'000'000;
constexpr int kHeartbeatMs = 20;
constexpr int kWakeUpMs = 10'000;  // nothing may need longer than that
constexpr const char* kKernel = "reference";

Secret TheSecret() {
  Secret secret;
  secret.key.fill(7);
  return secret;
}

// Finite f16 from 1/16 to 2 in magnitude, by their bits.
void Fill(uint16_t* out, int64_t width, uint64_t sequence, uint64_t layer, uint64_t position, uint64_t which) {
  std::mt19937_64 random(((sequence * 64 + layer) * 4096 + position) * 4 + which);
  for (int64_t i = 0; i < width; ++i) {
    const uint64_t x = random();
    out[i] = static_cast<uint16_t>((x & 1) << 15 | (11 + (x >> 11) % 5) << 10 | ((x >> 1) & 0x3ff));
  }
}

void FillQkv(uint16_t* out, uint64_t sequence, int layer, int position) {
  const auto l = static_cast<uint64_t>(layer), p = static_cast<uint64_t>(position);
  Fill(out, kShape.q_width(), sequence, l, p, 0);
  Fill(out + kShape.q_width(), kShape.kv_width(), sequence, l, p, 1);
  Fill(out + kShape.q_width() + kShape.kv_width(), kShape.kv_width(), sequence, l, p, 2);
}

void FillKv(uint16_t* out, uint64_t sequence, int layer, int position, int rows) {
  for (int row = 0; row < rows; ++row, out += 2 * kShape.kv_width()) {
    const auto l = static_cast<uint64_t>(layer), p = static_cast<uint64_t>(position + row);
    Fill(out, kShape.kv_width(), sequence, l, p, 1);
    Fill(out + kShape.kv_width(), kShape.kv_width(), sequence, l, p, 2);
  }
}

}  // namespace

SessionPlan::SessionPlan(uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto up_to = [&](uint64_t most) { return static_cast<int>(random() % (most + 1)); };
  session.shape = kShape;
  session.max_context = kMaxPrompt + kMaxSteps + 1;
  session.max_sequences = 16;
  session.max_rows = 16;
  session.mini_batches = kMiniBatches;
  session.decode_slots_per_mini_batch = 1 + up_to(1);
  session.bulk_slot_bytes = static_cast<size_t>(256 << up_to(4));
  session.bulk_send_slots = 1 + up_to(4);
  session.bulk_recv_slots = 1 + up_to(4);
  session.heartbeat_ms = kHeartbeatMs;
  session.peer_timeout_ms = 15'000;  // a slow machine is no fault
  session.transport.kind = random() % 3 == 0 ? TransportKind::kTcp : TransportKind::kShm;
  session.name = "sim";
  rworkers.resize(static_cast<size_t>(1 + up_to(1)));
  for (size_t r = 0; r < rworkers.size(); ++r) {
    const int count = 1 + up_to(5);
    for (int i = 0; i < count; ++i) {
      prompts.push_back(
          {static_cast<int>(r), up_to(kMiniBatches - 1), 1 + up_to(kMaxPrompt - 1), 1 + up_to(kMaxSteps - 1)});
    }
    for (int life = 0; life < 2; ++life) {
      FaultPlan plan;
      plan.seed = random();
      plan.delay_percent = up_to(100);
      plan.max_delay_polls = up_to(50);
      const int what = up_to(5);
      if (what == 4) plan.cut_at_poll = 1 + up_to(2000);
      if (what == 5) plan.corrupt_at = up_to(150);
      if (what >= 4) harmless = false;
      rworkers[r].faults.push_back(std::move(plan));
    }
    if (up_to(5) == 0) {
      rworkers[r].restart_at_pass = up_to(30);
      harmless = false;
    }
  }
}

SessionOracle::SessionOracle(const SessionOptions& session, size_t num_sequences)
    : shape_(session.shape), memory_(rworker::PoolMemory::Map(8 << 20, 0).value()) {
  const rworker::SessionLimits limits{.block_tokens = session.block_tokens,
                                      .max_context = session.max_context,
                                      .max_sequences = static_cast<int32_t>(num_sequences),
                                      .max_rows = 1,
                                      .max_mini_batches = 1};
  const kernels::AttentionKernel* kernel = kernels::ChooseAttentionKernel(kKernel, kernels::kNoFeatures).kernel;
  const auto codec = kernels::CodecOf(*kernel, kernels::KvFormat::kF16, kernels::KvFormat::kF16);
  service_ = rworker::AttentionService::Create(shape_, limits, &memory_, kernel, codec, &pool_).value();
}

void SessionOracle::Prefill(SequenceId sequence, int tokens) {
  std::vector<uint16_t> rows(static_cast<size_t>(tokens * 2 * shape_.kv_width()));
  for (int layer = 0; layer < shape_.num_layers; ++layer) {
    FillKv(rows.data(), sequence, layer, 0, tokens);
    CHECK(service_->AppendPrefill(sequence, layer, 0, tokens, rows.data()).ok());
  }
  CHECK(service_->FinishPrefill(sequence, tokens).ok());
}

std::vector<uint16_t> SessionOracle::Step(SequenceId sequence, int position) {
  const StepRow row{sequence, static_cast<uint32_t>(position), 0};
  CHECK(service_->BeginStep(0, ++steps_, std::span(&row, 1)).ok());
  const auto width = static_cast<size_t>(shape_.q_width());
  std::vector<uint16_t> qkv(static_cast<size_t>(shape_.qkv_width()));
  std::vector<uint16_t> o(static_cast<size_t>(shape_.num_layers) * width);
  for (int layer = 0; layer < shape_.num_layers; ++layer) {
    FillQkv(qkv.data(), sequence, layer, position);
    rworker::AttendInfo info;
    CHECK(service_->Attend(0, steps_, layer, qkv.data(), 1, &o[static_cast<size_t>(layer) * width], &info).ok());
  }
  return o;
}

SessionSim::SessionSim(const SessionPlan& plan)
    : plan_(plan),
      oracle_(plan.session, plan.prompts.size()),
      attention_(plan.session, static_cast<int>(plan.rworkers.size())),
      servers_(plan.rworkers.size()),
      mini_batches_(kMiniBatches),
      incarnations_(plan.rworkers.size(), 0),
      lives_(plan.rworkers.size(), 0),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  std::vector<std::string> addresses;
  for (size_t r = 0; r < servers_.size(); ++r) {
    StartRWorker(r, "127.0.0.1:0");
    addresses.push_back(servers_[r]->address());
  }
  for (const SessionPlan::Prompt& prompt : plan_.prompts) sequences_.push_back({.prompt = prompt});
  RWorkerCallbacks callbacks;
  callbacks.on_joined = [this](int index, const RWorkerGrant& grant, std::unique_ptr<Endpoint> endpoint) {
    std::lock_guard lock(mutex_);
    events_.push_back({index, {grant.incarnation, grant.transport == TransportKind::kShm, std::move(endpoint)}, {}});
    Wake();
  };
  callbacks.on_lost = [this](int index, uint32_t, const Status& reason) {
    std::lock_guard lock(mutex_);
    events_.push_back({index, {}, reason});
    Wake();
  };
  pool_ = RWorkerPool::Start(addresses, TheSecret(), plan_.session, AllocatePageableSlots, callbacks).value();
}

SessionSim::~SessionSim() { pool_.reset(); }

// By value: the address may be the old one's own.
void SessionSim::StartRWorker(size_t rworker, std::string address) {
  servers_[rworker].reset();
  rworker::ServerOptions options;
  options.listen = std::move(address);
  options.secret = TheSecret();
  options.kv_memory.bytes = 4 << 20;
  options.threads = 1;
  options.pin = false;
  options.prefault = false;
  options.kernel = kKernel;
  servers_[rworker] = rworker::RWorkerServer::Start(options).value();
}

void SessionSim::Wake() {
  const uint64_t one = 1;
  CHECK_EQ(write(wake_.get(), &one, sizeof(one)), static_cast<ssize_t>(sizeof(one)));
}

bool SessionSim::TakeControl() {
  std::deque<Event> events;
  {
    std::lock_guard lock(mutex_);
    events.swap(events_);
  }
  for (Event& event : events) {
    if (event.joined.endpoint == nullptr) {
      attention_.Lose(event.rworker, event.lost);
    } else {
      Join(event.rworker, std::move(event.joined));
    }
    (void)TakeAttention();  // a life's end is told before the next one's beginning
  }
  return !events.empty();
}

void SessionSim::Join(int rworker, Joined joined) {
  const auto r = static_cast<size_t>(rworker);
  incarnations_[r] = joined.incarnation;
  const size_t life = lives_[r]++;
  if (life < plan_.rworkers[r].faults.size()) {
    FaultPlan plan = plan_.rworkers[r].faults[life];
    if (!joined.can_be_cut) plan.cut_at_poll = -1;
    if (plan.cut_at_poll >= 0) {
      // Shared memory's wait_fd is the socket whose end is the link's.
      auto socket = std::make_shared<Fd>(dup(joined.endpoint->wait_fd()));
      plan.cut = [socket] { shutdown(socket->get(), SHUT_RDWR); };
    }
    if (plan.cut_at_poll >= 0 || plan.corrupt_at >= 0) ++faults_;
    joined.endpoint = std::make_unique<FaultyEndpoint>(std::move(joined.endpoint), std::move(plan));
  }
  attention_.Join(rworker, std::move(joined.endpoint));
}

bool SessionSim::TakeAttention() {
  bool moved = false;
  while (std::optional<AttentionEvent> event = attention_.Poll()) {
    moved = true;
    switch (event->kind) {
      case AttentionEvent::Kind::kAttended:
        OnAttended(*event);
        break;
      case AttentionEvent::Kind::kPrefillDone: {
        Sequence& sequence = sequences_[event->sequence - 1];
        CHECK(push_.has_value() && push_->sequence == event->sequence - 1) << "of what was not pushed";
        sequence.state = State::kRunning;
        push_.reset();
        break;
      }
      case AttentionEvent::Kind::kFreed: {
        State& state = sequences_[event->sequence - 1].state;
        // Done: it was freed by its R-worker's end, which was told first.
        CHECK(state == State::kFreeing || state == State::kDone) << "freed without being asked to";
        state = State::kDone;
        break;
      }
      case AttentionEvent::Kind::kLost:
        OnLost(event->rworker, event->reason);
        break;
    }
  }
  return moved;
}

// What the S-worker does: only the sequences of this R-worker end.
void SessionSim::OnLost(int rworker, const Status& reason) {
  losses_.push_back(reason);
  for (Sequence& sequence : sequences_) {
    if (sequence.prompt.rworker != rworker) continue;
    if (sequence.state == State::kPrefilling || sequence.state == State::kRunning) sequence.state = State::kLost;
    if (sequence.state == State::kFreeing) sequence.state = State::kDone;
  }
  if (push_.has_value() && sequences_[push_->sequence].prompt.rworker == rworker) push_.reset();
  pool_->ReportLost(rworker, incarnations_[static_cast<size_t>(rworker)], reason);
}

void SessionSim::OnAttended(const AttentionEvent& event) {
  MiniBatch& batch = mini_batches_[static_cast<size_t>(event.mini_batch)];
  CHECK(batch.phase == MiniBatch::Phase::kAwaitO) << "rows that nobody waits for";
  const auto width = static_cast<size_t>(kShape.q_width());
  for (const HostRows& part : event.o) {
    for (int i = 0; i < part.rows && !part.lost; ++i) {
      const auto row = static_cast<size_t>(part.row_begin + i);
      const bool right = std::memcmp(part.data + static_cast<size_t>(i) * width * 2,
                                     &batch.expected[row][static_cast<size_t>(batch.layer) * width], width * 2) == 0;
      ++(right ? right_rows_ : wrong_rows_);
    }
  }
  attention_.ReleaseO(event.mini_batch);
  batch.phase = MiniBatch::Phase::kAcquire;
  if (++batch.layer == kShape.num_layers) EndPass(batch);
}

void SessionSim::EndPass(MiniBatch& batch) {
  batch.phase = MiniBatch::Phase::kIdle;
  for (size_t row : batch.rows) {
    Sequence& sequence = sequences_[row];
    if (sequence.state != State::kRunning) continue;  // lost
    ++sequence.position;
    if (++sequence.steps < sequence.prompt.steps) continue;
    sequence.state = State::kFreeing;
    attention_.Free(sequence.prompt.rworker, row + 1);
  }
  for (size_t r = 0; r < servers_.size(); ++r) {
    if (passes_ != plan_.rworkers[r].restart_at_pass) continue;
    ++faults_;
    StartRWorker(r, servers_[r]->address());
  }
  ++passes_;
}

// One prompt at a time, the first whose R-worker is there.
bool SessionSim::AdvancePush() {
  if (!push_.has_value()) {
    const auto next = std::find_if(sequences_.begin(), sequences_.end(), [&](const Sequence& s) {
      return s.state == State::kWaiting && attention_.joined(s.prompt.rworker);
    });
    if (next == sequences_.end()) return false;
    next->state = State::kPrefilling;
    next->position = next->prompt.prompt_tokens;
    push_ = Push{.sequence = static_cast<size_t>(next - sequences_.begin())};
    oracle_.Prefill(push_->sequence + 1, next->position);
  }
  const SessionPlan::Prompt& prompt = sequences_[push_->sequence].prompt;
  const SequenceId id = push_->sequence + 1;
  bool moved = false;
  while (push_->layer < kShape.num_layers) {
    const Result<HostRows> piece = attention_.AcquireKv(prompt.rworker);
    if (!piece.ok() || piece->lost) return moved;  // kLost will say so
    moved = true;
    const int rows = std::min(piece->rows, prompt.prompt_tokens - push_->position);
    FillKv(reinterpret_cast<uint16_t*>(piece->data), id, push_->layer, push_->position, rows);
    CHECK(attention_.SubmitKv(*piece, id, push_->layer, push_->position, rows).ok());
    push_->position += rows;
    if (push_->position < prompt.prompt_tokens) continue;
    push_->position = 0;
    ++push_->layer;
  }
  if (!push_->finished) {
    push_->finished = attention_.FinishPrefill(prompt.rworker, id, prompt.prompt_tokens).ok();
    moved = moved || push_->finished;
  }
  return moved;
}

// False: there is nothing to run.
bool SessionSim::Plan(MiniBatch& batch, int mini_batch) {
  batch.rows.clear();
  batch.step_rows.clear();
  batch.slices.clear();
  batch.expected.clear();
  for (size_t i = 0; i < sequences_.size(); ++i) {
    const Sequence& sequence = sequences_[i];
    if (sequence.prompt.mini_batch != mini_batch || sequence.state != State::kRunning) continue;
    if (batch.slices.empty() || batch.slices.back().rworker != sequence.prompt.rworker) {
      batch.slices.push_back({sequence.prompt.rworker, static_cast<int>(batch.rows.size()), 0});
    }
    ++batch.slices.back().rows;
    batch.rows.push_back(i);
    batch.step_rows.push_back({i + 1, static_cast<uint32_t>(sequence.position), 0});
    batch.expected.push_back(oracle_.Step(i + 1, sequence.position));
  }
  batch.step = ++next_step_;
  batch.layer = 0;
  return !batch.rows.empty();
}

bool SessionSim::AdvancePass(int mini_batch) {
  MiniBatch& batch = mini_batches_[static_cast<size_t>(mini_batch)];
  if (batch.phase == MiniBatch::Phase::kIdle) {
    if (!Plan(batch, mini_batch)) return false;
    batch.phase = MiniBatch::Phase::kBegin;
  }
  if (batch.phase == MiniBatch::Phase::kBegin) {
    if (!attention_.BeginPass(mini_batch, batch.step, batch.step_rows, batch.slices).ok()) return false;
    batch.phase = MiniBatch::Phase::kAcquire;
  }
  if (batch.phase != MiniBatch::Phase::kAcquire) return false;
  const Result<std::span<const HostRows>> parts = attention_.AcquireQkv(mini_batch);
  if (!parts.ok()) return false;
  for (const HostRows& part : *parts) {
    auto* out = reinterpret_cast<uint16_t*>(part.data);
    for (int i = 0; i < part.rows && !part.lost; ++i, out += kShape.qkv_width()) {
      const StepRow& row = batch.step_rows[static_cast<size_t>(part.row_begin + i)];
      FillQkv(out, row.sequence, batch.layer, static_cast<int>(row.position));
    }
  }
  CHECK(attention_.SubmitQkv(mini_batch, batch.layer).ok());
  batch.phase = MiniBatch::Phase::kAwaitO;
  return true;
}

bool SessionSim::Over() const {
  return std::all_of(sequences_.begin(), sequences_.end(),
                     [](const Sequence& s) { return s.state == State::kDone || s.state == State::kLost; });
}

// False: nobody woke it in time.
bool SessionSim::Sleep() {
  std::vector<int> wait = {wake_.get()};
  if (!attention_.PrepareWait(&wait)) return true;
  std::vector<pollfd> fds;
  for (int fd : wait) fds.push_back({fd, POLLIN, 0});
  const bool woken = poll(fds.data(), fds.size(), kWakeUpMs) > 0;
  uint64_t value = 0;
  if ((fds[0].revents & POLLIN) != 0) CHECK_EQ(read(wake_.get(), &value, sizeof(value)), ssize_t{sizeof(value)});
  return woken;
}

Status SessionSim::Run() {
  const int64_t deadline = NowNs() + kPatienceNs;
  while (!Over()) {
    bool moved = TakeControl();
    moved = TakeAttention() || moved;
    moved = AdvancePush() || moved;
    for (int m = 0; m < kMiniBatches; ++m) moved = AdvancePass(m) || moved;
    if (!moved && !Sleep()) return Internal("nobody woke it: " + Describe());
    if (NowNs() >= deadline) return Internal("it hangs: " + Describe());
  }
  return OkStatus();
}

bool SessionSim::AllIsFree() const {
  const int64_t began = NowNs();
  const auto free = [&](int rworker) {
    const RWorkerStats stats = pool_->stats(rworker);
    if (!attention_.joined(rworker)) return true;  // its session ended with all that it held
    return stats.received_ns > began && stats.sequences == 0 && stats.free_blocks == stats.total_blocks;
  };
  for (int r = 0; r < pool_->size(); ++r) {
    while (!free(r)) {
      if (NowNs() > began + kPatienceNs) return false;
      poll(nullptr, 0, 1);
    }
  }
  return true;
}

std::string SessionSim::Describe() const {
  std::string text;
  for (size_t i = 0; i < sequences_.size(); ++i) {
    const Sequence& s = sequences_[i];
    if (s.state == State::kDone || s.state == State::kLost) continue;
    text += "sequence " + std::to_string(i + 1) + " of R-worker " + std::to_string(s.prompt.rworker) + " in state " +
            std::to_string(static_cast<int>(s.state)) + " after " + std::to_string(s.steps) + " steps; ";
  }
  for (const RWorkerPool::Missing& missing : pool_->missing()) text += missing.reason.message() + "; ";
  return text;
}

}  // namespace fastdecode
