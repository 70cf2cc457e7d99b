#include "sworker/rworkers/rworker_link.h"

#include <algorithm>
#include <cstdio>
#include <limits>

#include "common/base/logging.h"
#include "common/transport/tcp/socket.h"

namespace fastdecode {
namespace {

constexpr int64_t kNsPerMs = 1'000'000;
constexpr int kFirstBackoffMs = 100;
constexpr int kMaxBackoffMs = 2000;
constexpr int kRefusedBackoffMs = 5000;  // somebody must change something first
constexpr int kConnectTimeoutMs = 3000;

SessionOpen MakeOpen(const SessionOptions& options) {
  SessionOpen open;
  open.num_layers = static_cast<uint32_t>(options.shape.num_layers);
  open.num_heads = static_cast<uint32_t>(options.shape.num_heads);
  open.num_kv_heads = static_cast<uint32_t>(options.shape.num_kv_heads);
  open.head_dim = static_cast<uint32_t>(options.shape.head_dim);
  open.block_tokens = static_cast<uint32_t>(options.block_tokens);
  open.max_context = static_cast<uint32_t>(options.max_context);
  open.max_sequences = static_cast<uint32_t>(options.max_sequences);
  open.max_rows = static_cast<uint32_t>(options.max_rows);
  open.mini_batches = static_cast<uint32_t>(options.mini_batches);
  open.heartbeat_ms = static_cast<uint32_t>(options.heartbeat_ms);
  open.peer_timeout_ms = static_cast<uint32_t>(options.peer_timeout_ms);
  open.transport = static_cast<uint16_t>(options.transport.kind);
  open.kv_dtype = PackKvDtype(options.kv.keys, options.kv.values);
  auto lanes = SessionLanes(options);
  for (size_t i = 0; i < kNumLanes; ++i) {
    open.lanes[i] = {lanes[i].slot_bytes, static_cast<uint32_t>(lanes[i].send_slots),
                     static_cast<uint32_t>(lanes[i].recv_slots)};
  }
  SetText(open.name, options.name);
  return open;
}

std::string Seconds(int64_t ns) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.1f s", static_cast<double>(ns) * 1e-9);
  return text;
}

}  // namespace

RWorkerLink::RWorkerLink(const Context& context, int index, std::string address, HostPort host_port)
    : context_(context),
      index_(index),
      address_(std::move(address)),
      host_port_(std::move(host_port)),
      peer_("rworker " + address_),
      clock_(*context.clock) {
  SetState(Unavailable(peer_ + " has not answered yet"), false);
}

void RWorkerLink::Advance() {
  while (true) {
    Status status = Step();
    if (status.code() == StatusCode::kWouldBlock) return;
    if (!status.ok()) return Fail(std::move(status));
  }
}

Status RWorkerLink::Step() {
  if (HasSession()) FD_RETURN_IF_ERROR(WatchPeer());
  switch (stage_) {
    case Stage::kWaiting:
      return Begin();
    case Stage::kResolving:
      return TakeAddresses();
    case Stage::kControl:
      return ProveControl();
    case Stage::kTransport:
      return AgreeOnTransport();
    case Stage::kOpening:
    case Stage::kJoined:
      break;
  }
  return {StatusCode::kWouldBlock, {}};
}

Status RWorkerLink::Begin() {
  if (clock_.NowNs() < retry_ns_) return {StatusCode::kWouldBlock, {}};
  if (leftover_ != nullptr && leftover_->busy()) {
    retry_ns_ = clock_.NowNs() + kFirstBackoffMs * kNsPerMs;
    return {StatusCode::kWouldBlock, {}};
  }
  leftover_.reset();
  final_refusal_ = false;
  auto numeric = ParseNumericAddress(host_port_);
  if (numeric.ok()) {
    addresses_ = *std::move(numeric);
    control_.emplace(addresses_, context_.secret.key, Purpose::kControl, 0, peer_, kConnectTimeoutMs, clock_);
    stage_ = Stage::kControl;
  } else {
    context_.resolver->Ask(index_, host_port_);
    stage_ = Stage::kResolving;
  }
  return OkStatus();
}

Status RWorkerLink::TakeAddresses() {
  auto answer = context_.resolver->Take(index_);
  if (!answer.has_value()) return {StatusCode::kWouldBlock, {}};
  if (!answer->ok()) return NotFound(peer_ + ": " + answer->status().message());
  addresses_ = **answer;
  control_.emplace(addresses_, context_.secret.key, Purpose::kControl, 0, peer_, kConnectTimeoutMs, clock_);
  stage_ = Stage::kControl;
  return OkStatus();
}

Status RWorkerLink::ProveControl() {
  Status status = control_->Advance();
  if (!status.ok()) {
    final_refusal_ = control_->refused();
    return status;
  }
  session_key_ = control_->session_key();
  last_heard_ns_ = clock_.NowNs();
  next_heartbeat_ns_ = last_heard_ns_ + context_.options.heartbeat_ms * kNsPerMs;
  stage_ = Stage::kOpening;
  (void)TuneControl(control_->channel().fd(), context_.options.peer_timeout_ms);
  return control_->channel().WriteFrame(MakeOpen(context_.options));
}

// While there is a session, joined or not: frames that came, silence, our heartbeat.
Status RWorkerLink::WatchPeer() {
  FD_RETURN_IF_ERROR(ReadControl());
  int64_t now_ns = clock_.NowNs();
  int64_t silence_ns = now_ns - last_heard_ns_;
  if (silence_ns >= context_.options.peer_timeout_ms * kNsPerMs) {
    return {StatusCode::kDeadlineExceeded,
            peer_ + " has been silent for " + Seconds(silence_ns) + " (frozen, overloaded or cut off)"};
  }
  ByteChannel& channel = control_->channel();
  FD_RETURN_IF_ERROR(channel.Flush());
  if (now_ns < next_heartbeat_ns_) return OkStatus();
  next_heartbeat_ns_ = now_ns + context_.options.heartbeat_ms * kNsPerMs;
  return channel.wants_write() ? OkStatus() : channel.WriteFrame(Heartbeat());
}

Status RWorkerLink::ReadControl() {
  ByteChannel::Frame frame;
  for (int i = 0; i < ByteChannel::kFramesATurn; ++i) {
    Status status = control_->channel().ReadFrame(frame);
    if (status.code() == StatusCode::kWouldBlock) return OkStatus();
    FD_RETURN_IF_ERROR(status);
    last_heard_ns_ = clock_.NowNs();
    FD_RETURN_IF_ERROR(OnFrame(frame));
  }
  return OkStatus();
}

Status RWorkerLink::OnFrame(const ByteChannel::Frame& frame) {
  switch (frame.type) {
    case FrameType::kHeartbeat:
      OnHeartbeat(frame.as<Heartbeat>());
      return OkStatus();
    case FrameType::kGoodbye:
      return Unavailable(peer_ + " ended the session: " + GetText(frame.as<fastdecode::Goodbye>().text));
    case FrameType::kSessionGrant:
      if (stage_ == Stage::kOpening) return OnGrant(frame.as<SessionGrant>());
      break;
    case FrameType::kRefusal:
      if (stage_ == Stage::kOpening) return OnRefusal(frame.as<Refusal>());
      break;
    case FrameType::kTransportAnswer:
      if (stage_ >= Stage::kTransport) return OnTransportAnswer(frame.as<TransportAnswer>());
      break;
    case FrameType::kSessionOpen:
    case FrameType::kTransportOffer:
    case FrameType::kTransportReady:
      break;
  }
  return DataLoss(peer_ + " sends a control frame of type " + std::to_string(static_cast<int>(frame.type)) +
                  " out of turn");
}

Status RWorkerLink::OnGrant(const SessionGrant& grant) {
  constexpr uint64_t kMax = uint64_t{1} << 48;
  if (grant.incarnation == 0 || grant.kv_blocks == 0 || grant.kv_blocks > kMax || grant.kv_memory > kMax ||
      grant.transport > kMaxTransportKind) {
    return DataLoss(peer_ + " grants a session that makes no sense");
  }
  grant_ = RWorkerGrant();
  grant_.incarnation = grant.incarnation;
  grant_.address = address_;
  grant_.kv_blocks = static_cast<int64_t>(grant.kv_blocks);
  grant_.kv_memory = static_cast<int64_t>(grant.kv_memory);
  grant_.kv_token_bytes = static_cast<int64_t>(grant.kv_token_bytes);
  grant_.threads = static_cast<int>(std::min<uint32_t>(grant.threads, 1 << 16));
  grant_.hostname = GetText(grant.hostname);
  grant_.kernel = GetText(grant.kernel);
  CarrierContext context;
  context.endpoint.lanes = SessionLanes(context_.options);
  context.endpoint.incarnation = grant_.incarnation;
  context.endpoint.peer = peer_;
  context.session_key = session_key_;
  context.allocate = context_.allocate;
  context.addresses = addresses_;
  context.timeout_ms = kConnectTimeoutMs;
  context.clock = &clock_;
  negotiation_.emplace(*context_.carriers, std::move(context));
  stage_ = Stage::kTransport;
  return OkStatus();
}

Status RWorkerLink::OnRefusal(const Refusal& refusal) {
  auto code = static_cast<RefusalCode>(refusal.code);
  final_refusal_ = code != RefusalCode::kBusy;
  return {StatusCodeOf(code), peer_ + " refuses: " + GetText(refusal.text)};
}

Status RWorkerLink::OnTransportAnswer(const TransportAnswer& answer) {
  if (negotiation_.has_value()) return negotiation_->OnAnswer(answer);
  // Joined, as far as this side knows; the R-worker's end failed at the last moment.
  return Unavailable(peer_ + " gave up its end of transport " + NameOf(grant_.transport));
}

Status RWorkerLink::AgreeOnTransport() {
  Result<ChosenTransport> chosen = negotiation_->Advance(control_->channel());
  if (!chosen.ok()) {
    if (chosen.status().code() != StatusCode::kWouldBlock) final_refusal_ = negotiation_->refused();
    return chosen.status();
  }
  Join(*std::move(chosen));
  return OkStatus();
}

void RWorkerLink::Join(ChosenTransport chosen) {
  negotiation_.reset();
  grant_.transport = chosen.kind;
  grant_.transport_why = chosen.why;
  stage_ = Stage::kJoined;
  backoff_ms_ = 0;
  last_logged_.clear();
  SetState(OkStatus(), false);
  LOG(INFO) << peer_ << " joined: host " << grant_.hostname << ", " << grant_.threads << " threads, kernel "
            << grant_.kernel << ", " << grant_.kv_blocks << " KV blocks, " << kernels::Describe(context_.options.kv)
            << " of " << grant_.kv_token_bytes << " bytes a token, transport " << NameOf(grant_.transport) << " ("
            << grant_.transport_why << "), incarnation " << grant_.incarnation;
  context_.callbacks.on_joined(index_, grant_, std::move(chosen.endpoint));
}

void RWorkerLink::OnHeartbeat(const Heartbeat& heartbeat) {
  auto clamp = [](uint64_t value) {
    return static_cast<int64_t>(std::min<uint64_t>(value, std::numeric_limits<int64_t>::max()));
  };
  std::lock_guard lock(mutex_);
  stats_.incarnation = stage_ == Stage::kJoined ? grant_.incarnation : 0;
  stats_.received_ns = last_heard_ns_;
  stats_.free_blocks = clamp(heartbeat.free_blocks);
  stats_.total_blocks = clamp(heartbeat.total_blocks);
  stats_.sequences = clamp(heartbeat.sequences);
  stats_.workload = clamp(heartbeat.workload);
  stats_.peak_workload = clamp(heartbeat.peak_workload);
  stats_.rows = clamp(heartbeat.rows);
  stats_.steps = clamp(heartbeat.steps);
  stats_.kv_tokens_appended = clamp(heartbeat.kv_tokens_appended);
  stats_.compute_ns = clamp(heartbeat.compute_ns);
  stats_.kv_beyond_range = clamp(heartbeat.kv_beyond_range);
}

void RWorkerLink::Fail(Status reason) {
  bool joined = stage_ == Stage::kJoined;
  control_.reset();
  EndNegotiation();
  session_key_.fill(0);
  stage_ = Stage::kWaiting;
  backoff_ms_ = std::clamp(2 * backoff_ms_, kFirstBackoffMs, kMaxBackoffMs);
  if (final_refusal_) backoff_ms_ = kRefusedBackoffMs;
  retry_ns_ = clock_.NowNs() + backoff_ms_ * kNsPerMs;
  // A peer that stays away fails the same way again and again: one line for all.
  if (reason.message() != last_logged_) {
    LOG(WARNING) << (joined ? "lost " + peer_ + " (incarnation " + std::to_string(grant_.incarnation) + "): " : "")
                 << reason.message() << (joined ? "" : "; trying again");
    last_logged_ = reason.message();
  }
  SetState(reason, final_refusal_);
  if (joined) context_.callbacks.on_lost(index_, grant_.incarnation, reason);
}

void RWorkerLink::EndNegotiation() {
  if (!negotiation_.has_value()) return;
  leftover_ = negotiation_->TakeEnd();
  negotiation_.reset();
  if (leftover_ != nullptr && !leftover_->busy()) leftover_.reset();
}

void RWorkerLink::ReportLost(uint32_t incarnation, const Status& reason) {
  if (stage_ == Stage::kJoined && incarnation == grant_.incarnation) Fail(reason);
}

void RWorkerLink::Goodbye() {
  if (!HasSession()) return;
  fastdecode::Goodbye goodbye;
  SetText(goodbye.text, "the S-worker is shutting down");
  (void)control_->channel().WriteFrame(goodbye);
}

void RWorkerLink::AppendWants(std::vector<pollfd>& fds) const {
  if (control_.has_value()) fds.push_back(control_->wants());
  if (negotiation_.has_value()) negotiation_->AppendWants(&fds);
}

int64_t RWorkerLink::next_deadline_ns() const {
  int64_t deadline = std::numeric_limits<int64_t>::max();
  if (stage_ == Stage::kWaiting) deadline = retry_ns_;
  if (stage_ == Stage::kControl) deadline = control_->deadline_ns();
  if (negotiation_.has_value()) deadline = std::min(deadline, negotiation_->deadline_ns());
  if (HasSession()) {
    int64_t silence = last_heard_ns_ + context_.options.peer_timeout_ms * kNsPerMs;
    deadline = std::min({deadline, silence, next_heartbeat_ns_});
  }
  return deadline;
}

void RWorkerLink::SetState(Status status, bool final) {
  std::lock_guard lock(mutex_);
  if (!status.ok()) {
    const auto sessions_over = stats_.sessions_over;
    stats_ = RWorkerStats();
    stats_.sessions_over = sessions_over;
  }
  if (status.ok()) {  // until the first heartbeat
    stats_.incarnation = grant_.incarnation;
    stats_.total_blocks = stats_.free_blocks = grant_.kv_blocks;
    stats_.kv_token_bytes = grant_.kv_token_bytes;
    stats_.transport = grant_.transport;
    stats_.transport_why = std::make_shared<const std::string>(grant_.transport_why);
    ++stats_.sessions_over[static_cast<size_t>(grant_.transport)];
  }
  state_ = {std::move(status), final};
}

RWorkerStats RWorkerLink::stats() const {
  std::lock_guard lock(mutex_);
  return stats_;
}

RWorkerLink::State RWorkerLink::state() const {
  std::lock_guard lock(mutex_);
  return state_;
}

}  // namespace fastdecode
