#include "rworker/control_loop.h"

#include <unistd.h>

#include <algorithm>

#include "common/base/logging.h"
#include "common/transport/tcp/socket.h"

namespace fastdecode::rworker {
namespace {

constexpr int64_t kNsPerMs = 1'000'000;

SessionHost::Options WithNotify(SessionHost::Options options, ControlLoop* loop) {
  options.environment.notify = [loop] { loop->Wake(); };
  return options;
}

}  // namespace

ControlLoop::ControlLoop(Options options, Fd listener, Fd wake, const Clock& clock)
    : options_(std::move(options)),
      listener_(std::move(listener)),
      wake_(std::move(wake)),
      clock_(clock),
      host_(WithNotify(options_.host, this), clock) {}

void ControlLoop::Wake() {
  uint64_t one = 1;
  [[maybe_unused]] ssize_t count = write(wake_.get(), &one, sizeof(one));
}

void ControlLoop::Stop() {
  stop_.store(true, std::memory_order_release);
  Wake();
}

void ControlLoop::Run() {
  while (true) {
    Wait();
    if (stop_.load(std::memory_order_acquire)) host_.Shutdown();
    host_.OnNotify();
    if (stop_.load(std::memory_order_acquire)) {
      if (host_.stage() == SessionHost::Stage::kIdle) return;
      continue;
    }
    Accept();
    // Before the pending ones: the end of a session makes room for the next.
    host_.OnControlReadable();
    if (host_.wants_write()) host_.OnControlWritable();
    host_.OnTransport();
    AdvancePending();
    DropLate();
    host_.OnTime();
  }
}

int ControlLoop::TimeoutMs() const {
  int64_t deadline = host_.next_deadline_ns();
  for (const PendingConnection& connection : pending_) deadline = std::min(deadline, connection.deadline_ns());
  if (accept_again_ns_ != 0) deadline = std::min(deadline, accept_again_ns_);
  if (deadline == std::numeric_limits<int64_t>::max()) return -1;
  int64_t wait_ns = std::max<int64_t>(0, deadline - clock_.NowNs());
  return static_cast<int>(std::min<int64_t>(wait_ns / kNsPerMs + 1, 60'000));
}

void ControlLoop::Wait() {
  fds_.clear();
  fds_.push_back({wake_.get(), POLLIN, 0});
  fds_.push_back({accept_again_ns_ == 0 ? listener_.get() : -1, POLLIN, 0});
  short host_events = host_.wants_write() ? POLLIN | POLLOUT : POLLIN;
  fds_.push_back({host_.control_fd(), host_events, 0});
  for (const PendingConnection& connection : pending_) {
    short events = connection.channel().wants_write() ? POLLIN | POLLOUT : POLLIN;
    fds_.push_back({connection.channel().fd(), events, 0});
  }
  host_.AppendWants(&fds_);
  poll(fds_.data(), fds_.size(), TimeoutMs());
  if ((fds_[0].revents & POLLIN) == 0) return;
  uint64_t value = 0;
  [[maybe_unused]] ssize_t count = read(wake_.get(), &value, sizeof(value));
}

void ControlLoop::Accept() {
  if (accept_again_ns_ > clock_.NowNs()) return;
  accept_again_ns_ = 0;
  for (int i = 0; i < options_.max_pending; ++i) {
    Result<Accepted> accepted = AcceptTcp(listener_.get());
    if (!accepted.ok()) {
      if (accepted.status().code() == StatusCode::kWouldBlock) return;
      LOG(WARNING) << accepted.status().message();
      accept_again_ns_ = clock_.NowNs() + 1000 * kNsPerMs;
      return;
    }
    if (static_cast<int>(pending_.size()) >= options_.max_pending) {
      pending_.front().Refuse(Unavailable("too many connections are waiting and this is the oldest"));
      Refused(pending_.front());
      pending_.pop_front();
    }
    pending_.emplace_back(std::move(accepted->socket), ToString(accepted->peer), options_.secret.key,
                          clock_.NowNs() + options_.handshake_timeout_ms * kNsPerMs);
  }
}

void ControlLoop::AdvancePending() {
  auto find_key = [this](const Hello& hello) {
    bool control = hello.purpose == static_cast<uint8_t>(Purpose::kControl);
    return control ? &options_.secret.key : host_.StreamKey(hello);
  };
  for (auto it = pending_.begin(); it != pending_.end();) {
    PendingConnection& connection = *it;
    // A full socket buffer at this stage is a peer that does not read: its deadline ends it.
    (void)connection.channel().Flush();
    PendingConnection::State state = connection.Advance(find_key);
    if (state == PendingConnection::State::kWantsSession) {
      host_.Open(connection);
    } else if (state == PendingConnection::State::kIsStream) {
      host_.Attach(connection);
    }
    if (connection.state() == PendingConnection::State::kRefused) Refused(connection);
    bool waits = connection.state() < PendingConnection::State::kWantsSession;
    it = waits ? std::next(it) : pending_.erase(it);
  }
}

void ControlLoop::DropLate() {
  int64_t now_ns = clock_.NowNs();
  // Accepted in order, so the oldest deadlines stand in front.
  while (!pending_.empty() && pending_.front().deadline_ns() <= now_ns) {
    PendingConnection& late = pending_.front();
    late.Refuse(Status(StatusCode::kDeadlineExceeded, late.DeadlineReason()));
    Refused(late);
    pending_.pop_front();
  }
}

void ControlLoop::Refused(const PendingConnection& connection) {
  if (connection.looked_only()) {
    VLOG(1) << connection.channel().peer() << " looked whether the port is open";
    return;
  }
  LOG(WARNING) << "refused " << connection.channel().peer() << ": " << connection.reason().message();
}

}  // namespace fastdecode::rworker
