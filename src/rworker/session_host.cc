#include "rworker/session_host.h"

#include <algorithm>
#include <cstdio>
#include <limits>

#include "common/base/logging.h"
#include "common/transport/tcp/socket.h"

namespace fastdecode::rworker {
namespace {

constexpr int64_t kNsPerMs = 1'000'000;

std::string Seconds(int64_t ns) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.1f s", static_cast<double>(ns) * 1e-9);
  return text;
}

}  // namespace

SessionHost::SessionHost(Options options, const Clock& clock)
    : options_(std::move(options)),
      clock_(clock),
      carriers_(options_.transport),
      next_incarnation_(options_.first_incarnation) {}

SessionHost::~SessionHost() = default;

std::string SessionHost::BusyReason(const SessionOpen& open) const {
  std::string reason = "this R-worker is serving " + who_ + " since " + Seconds(clock_.NowNs() - began_ns_) +
                       " and takes one S-worker at a time";
  const AttentionShape shape = ShapeOf(open);
  if (!(shape == plan_.shape)) {
    reason += ", with another model: " + Describe(plan_.shape) + "; asked for: " + Describe(shape);
  }
  return reason;
}

void SessionHost::Open(PendingConnection& connection) {
  Status refusal;
  if (stage_ != Stage::kIdle) {
    refusal = Unavailable(BusyReason(connection.open()));
  } else {
    Result<SessionPlan> plan = PlanSession(connection.open(), options_.max_buffer_memory, options_.model_shape);
    refusal = plan.ok() ? CheckTransport(plan->transport) : plan.status();
    if (refusal.ok()) return Begin(connection, *std::move(plan));
  }
  RefusalCode code = RefusalCodeOf(refusal.code());
  connection.RefuseSession(code, std::move(refusal));
}

// A kind that either side named is used or refused, before anything is set up for it.
Status SessionHost::CheckTransport(TransportKind wanted) const {
  const TransportKind own = options_.transport.kind;
  if (wanted == TransportKind::kAuto) return OkStatus();
  if (own != TransportKind::kAuto && own != wanted) {
    return {StatusCode::kUnimplemented, std::string("transport ") + NameOf(wanted) +
                                            " was asked for; this R-worker was started with --transport " +
                                            NameOf(own)};
  }
  return carriers_.Check(wanted);
}

void SessionHost::Begin(PendingConnection& connection, SessionPlan plan) {
  Result<std::unique_ptr<Session>> session = Session::Start(plan, options_.environment);
  if (!session.ok()) return connection.RefuseSession(RefusalCode::kNoMemory, session.status());
  session_ = *std::move(session);
  plan_ = std::move(plan);
  session_key_ = connection.session_key();
  control_ = std::move(connection.channel());
  (void)TuneControl(control_.fd(), plan_.peer_timeout_ms);
  who_ = "S-worker \"" + plan_.name + "\" at " + control_.peer();
  incarnation_ = next_incarnation_++;
  if (next_incarnation_ == 0) next_incarnation_ = 1;
  began_ns_ = last_heard_ns_ = clock_.NowNs();
  next_heartbeat_ns_ = began_ns_;
  end_reason_ = OkStatus();
  stage_ = Stage::kOpening;
}

const AuthKey* SessionHost::StreamKey(const Hello& hello) const {
  if (stage_ != Stage::kTransport || hello.incarnation != incarnation_) return nullptr;
  if (hello.purpose == static_cast<uint8_t>(Purpose::kShared)) return nullptr;  // not at this port
  const Lane lane = hello.purpose == static_cast<uint8_t>(Purpose::kBulk) ? Lane::kBulk : Lane::kDecode;
  return negotiation_->WantsStream(lane) ? &session_key_ : nullptr;
}

void SessionHost::Attach(PendingConnection& connection) {
  negotiation_->TakeStream(connection.purpose() == Purpose::kBulk ? Lane::kBulk : Lane::kDecode,
                           connection.channel().TakeSocket());
  OnTransport();
}

CarrierContext SessionHost::MakeContext() const {
  CarrierContext context;
  context.endpoint = plan_.endpoint;
  context.endpoint.incarnation = incarnation_;
  context.endpoint.peer = who_;
  context.session_key = session_key_;
  context.allocate = AllocatePageableSlots;  // pages are touched by the first message that uses them
  context.clock = &clock_;
  return context;
}

void SessionHost::OnTransport() {
  if (stage_ != Stage::kTransport) return;
  Result<ChosenTransport> chosen = negotiation_->Advance(control_);
  if (chosen.ok()) return StartServing(*std::move(chosen));
  if (chosen.status().code() != StatusCode::kWouldBlock) End(chosen.status(), true);
}

void SessionHost::StartServing(ChosenTransport chosen) {
  negotiation_.reset();
  session_->Serve(std::move(chosen.endpoint));
  stage_ = Stage::kServing;
  LOG(INFO) << "session " << incarnation_ << " with " << who_ << ": " << Describe(plan_.shape) << ", "
            << session_->counters().total_blocks << " KV blocks of " << plan_.limits.block_tokens << " tokens, KV "
            << kernels::Describe(plan_.kv) << ", " << KvTokenBytes(plan_) << " bytes a token, transport "
            << NameOf(chosen.kind) << " (" << chosen.why << ")";
}

void SessionHost::OnOpened(const Result<KvStats>& opened) {
  if (!opened.ok()) {
    Refusal refusal;
    refusal.code = static_cast<uint32_t>(RefusalCodeOf(opened.status().code()));
    SetText(refusal.text, opened.status().message());
    (void)control_.WriteFrame(refusal);
    LOG(WARNING) << "refused " << who_ << ": " << opened.status().message();
    return End(OkStatus(), false);
  }
  SessionGrant grant;
  grant.incarnation = incarnation_;
  grant.threads = static_cast<uint32_t>(options_.environment.threads);
  grant.kv_blocks = static_cast<uint64_t>(opened->total_blocks);
  grant.kv_memory = static_cast<uint64_t>(options_.kv_memory);
  grant.kv_token_bytes = static_cast<uint32_t>(KvTokenBytes(plan_));  // at most 2^31
  grant.transport = static_cast<uint16_t>(options_.transport.kind);
  SetText(grant.hostname, options_.hostname);
  SetText(grant.kernel, options_.kernel);
  negotiation_.emplace(carriers_, MakeContext());
  stage_ = Stage::kTransport;
  Status status = control_.WriteFrame(grant);
  if (!status.ok()) End(std::move(status), false);
}

void SessionHost::OnNotify() {
  if (session_ == nullptr) return;
  if (stage_ == Stage::kOpening) {
    auto opened = session_->opened();
    if (opened.has_value()) OnOpened(*opened);
  }
  std::optional<Status> ended = session_->ended();
  if (!ended.has_value()) return;
  if (stage_ != Stage::kEnding) End(*ended, true);
  Finish();
}

Status SessionHost::ReadFrames() {
  ByteChannel::Frame frame;
  for (int i = 0; i < ByteChannel::kFramesATurn; ++i) {
    Status status = control_.ReadFrame(frame);
    if (status.code() == StatusCode::kWouldBlock) return OkStatus();
    FD_RETURN_IF_ERROR(status);
    last_heard_ns_ = clock_.NowNs();
    FD_RETURN_IF_ERROR(OnFrame(frame));
  }
  return OkStatus();
}

Status SessionHost::OnFrame(const ByteChannel::Frame& frame) {
  switch (frame.type) {
    case FrameType::kHeartbeat:
      return OkStatus();
    case FrameType::kGoodbye:
      return {StatusCode::kCancelled, "it said goodbye: " + GetText(frame.as<Goodbye>().text)};
    case FrameType::kTransportOffer:
      if (stage_ == Stage::kTransport) return negotiation_->OnOffer(frame.as<TransportOffer>(), control_);
      break;
    case FrameType::kTransportReady:
      if (stage_ == Stage::kTransport) return negotiation_->OnReady(frame.as<TransportReady>());
      break;
    default:
      break;
  }
  return DataLoss("a control frame of type " + std::to_string(static_cast<int>(frame.type)) +
                  " in the middle of a session");
}

void SessionHost::OnControlReadable() {
  if (!control_.open()) return;
  Status status = ReadFrames();
  if (status.ok()) return OnTransport();
  bool tell_peer = status.code() == StatusCode::kDataLoss;
  End(std::move(status), tell_peer);
}

void SessionHost::OnControlWritable() {
  Status status = control_.Flush();
  if (!status.ok()) End(std::move(status), false);
}

void SessionHost::OnTime() {
  if (!control_.open()) return;
  int64_t now_ns = clock_.NowNs();
  int64_t silence_ns = now_ns - last_heard_ns_;
  if (silence_ns >= plan_.peer_timeout_ms * kNsPerMs) {
    return End(Status(StatusCode::kDeadlineExceeded,
                      "it has been silent for " + Seconds(silence_ns) + " (frozen, overloaded or cut off)"),
               true);
  }
  if (now_ns < next_heartbeat_ns_) return;
  next_heartbeat_ns_ = now_ns + plan_.heartbeat_ms * kNsPerMs;
  // What the last one could not send is still there: the peer's silence will end this.
  if (control_.wants_write()) return;
  Status status = control_.WriteFrame(session_->counters());
  if (!status.ok()) End(std::move(status), false);
}

int64_t SessionHost::next_deadline_ns() const {
  if (!control_.open()) return std::numeric_limits<int64_t>::max();
  int64_t silence = last_heard_ns_ + plan_.peer_timeout_ms * kNsPerMs;
  int64_t transport = std::numeric_limits<int64_t>::max();
  if (negotiation_.has_value()) transport = negotiation_->deadline_ns();
  return std::min({silence, next_heartbeat_ns_, transport});
}

void SessionHost::AppendWants(std::vector<pollfd>* fds) const {
  if (negotiation_.has_value()) negotiation_->AppendWants(fds);
}

void SessionHost::End(Status reason, bool tell_peer) {
  if (stage_ == Stage::kIdle || stage_ == Stage::kEnding) return;
  if (tell_peer && control_.open()) {
    Goodbye goodbye;
    SetText(goodbye.text, reason.message());
    (void)control_.WriteFrame(goodbye);
  }
  control_.Close();
  negotiation_.reset();
  end_reason_ = std::move(reason);
  stage_ = Stage::kEnding;
  session_->RequestEnd();
}

void SessionHost::Finish() {
  const Heartbeat counters = session_->counters();
  if (!end_reason_.ok()) {
    bool wanted = end_reason_.code() == StatusCode::kCancelled;
    LOG_AT_LEVEL(wanted ? google::GLOG_INFO : google::GLOG_WARNING)
        << "session " << incarnation_ << " with " << who_ << " ended after " << Seconds(clock_.NowNs() - began_ns_)
        << ": " << end_reason_.message() << "; " << counters.steps << " passes, " << counters.rows << " rows, "
        << counters.kv_tokens_appended << " prefilled rows of K/V, peak W " << counters.peak_workload << ", computed "
        << Seconds(static_cast<int64_t>(counters.compute_ns))
        << (counters.kv_beyond_range == 0 ? ""
                                          : ", " + std::to_string(counters.kv_beyond_range) +
                                                " elements of K and V beyond the range of the cache");
  }
  session_.reset();
  session_key_.fill(0);
  stage_ = Stage::kIdle;
}

void SessionHost::Shutdown() { End(Status(StatusCode::kCancelled, "the R-worker is shutting down"), true); }

}  // namespace fastdecode::rworker
