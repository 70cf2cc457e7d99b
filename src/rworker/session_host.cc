#include "rworker/session_host.h"

#include <algorithm>
#include <cstdio>
#include <limits>
#include <new>

#include "common/base/logging.h"
#include "common/transport/tcp/socket.h"
#include "common/transport/tcp/tcp_endpoint.h"

namespace fastdecode::rworker {
namespace {

constexpr int64_t kNsPerMs = 1'000'000;

std::string Seconds(int64_t ns) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.1f s", static_cast<double>(ns) * 1e-9);
  return text;
}

// Pages are touched by the first message that uses them.
std::shared_ptr<std::byte[]> AllocateSlots(size_t bytes) {
  auto* memory = static_cast<std::byte*>(operator new[](bytes, std::align_val_t(64), std::nothrow));
  if (memory == nullptr) return nullptr;
  return {memory, [](std::byte* pointer) { operator delete[](pointer, std::align_val_t(64)); }};
}

}  // namespace

SessionHost::SessionHost(Options options, const Clock& clock)
    : options_(std::move(options)), clock_(clock), next_incarnation_(options_.first_incarnation) {}

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
    if (plan.ok()) return Begin(connection, *std::move(plan));
    refusal = plan.status();
  }
  RefusalCode code = RefusalCodeOf(refusal.code());
  connection.RefuseSession(code, std::move(refusal));
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
  if (stage_ != Stage::kStreams || hello.incarnation != incarnation_) return nullptr;
  bool bulk = hello.purpose == static_cast<uint8_t>(Purpose::kBulk);
  return streams_[bulk ? 1 : 0].valid() ? nullptr : &session_key_;
}

void SessionHost::Attach(PendingConnection& connection) {
  size_t lane = connection.purpose() == Purpose::kBulk ? 1 : 0;
  streams_[lane] = connection.channel().TakeSocket();
  if (streams_[0].valid() && streams_[1].valid()) StartServing();
}

void SessionHost::StartServing() {
  EndpointOptions options = plan_.endpoint;
  options.incarnation = incarnation_;
  options.peer = who_;
  for (const Fd& stream : streams_) {
    Status status = TuneStream(stream.get());
    if (!status.ok()) return End(std::move(status), true);
  }
  auto memory = AllocateSlots(EndpointMemoryBytes(options));
  if (memory == nullptr) {
    return End(Status(StatusCode::kResourceExhausted, "no memory for the message buffers"), true);
  }
  auto endpoint = TcpEndpoint::Create(options, std::move(streams_), std::move(memory), clock_);
  if (!endpoint.ok()) return End(endpoint.status(), true);
  session_->Serve(*std::move(endpoint));
  stage_ = Stage::kServing;
  LOG(INFO) << "session " << incarnation_ << " with " << who_ << ": " << Describe(plan_.shape) << ", "
            << session_->counters().total_blocks << " KV blocks of " << plan_.limits.block_tokens << " tokens, KV "
            << kernels::Describe(plan_.kv) << ", " << KvTokenBytes(plan_) << " bytes a token";
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
  SetText(grant.hostname, options_.hostname);
  SetText(grant.kernel, options_.kernel);
  stage_ = Stage::kStreams;
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
  while (true) {
    Status status = control_.ReadFrame(frame);
    if (status.code() == StatusCode::kWouldBlock) return OkStatus();
    FD_RETURN_IF_ERROR(status);
    last_heard_ns_ = clock_.NowNs();
    if (frame.type == FrameType::kHeartbeat) continue;
    if (frame.type == FrameType::kGoodbye) {
      return {StatusCode::kCancelled, "it said goodbye: " + GetText(frame.as<Goodbye>().text)};
    }
    return DataLoss("a control frame of type " + std::to_string(static_cast<int>(frame.type)) +
                    " in the middle of a session");
  }
}

void SessionHost::OnControlReadable() {
  if (!control_.open()) return;
  Status status = ReadFrames();
  if (status.ok()) return;
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
  return std::min(silence, next_heartbeat_ns_);
}

void SessionHost::End(Status reason, bool tell_peer) {
  if (stage_ == Stage::kIdle || stage_ == Stage::kEnding) return;
  if (tell_peer && control_.open()) {
    Goodbye goodbye;
    SetText(goodbye.text, reason.message());
    (void)control_.WriteFrame(goodbye);
  }
  control_.Close();
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
  for (Fd& stream : streams_) stream.Reset();
  session_key_.fill(0);
  stage_ = Stage::kIdle;
}

void SessionHost::Shutdown() { End(Status(StatusCode::kCancelled, "the R-worker is shutting down"), true); }

}  // namespace fastdecode::rworker
