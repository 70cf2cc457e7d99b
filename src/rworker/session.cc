#include "rworker/session.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cstring>
#include <new>
#include <system_error>

#include "common/base/logging.h"
#include "rworker/message_handler.h"

namespace fastdecode::rworker {
namespace {

Status NoThread(const std::system_error& error) {
  return {StatusCode::kResourceExhausted, std::string("this host gives no thread for a session (") + error.what() +
                                              "); raise the limit: ulimit -u, or the container's pids.max"};
}

}  // namespace

Session::Session(const SessionPlan& plan, Environment environment, Fd wake)
    : plan_(plan), environment_(std::move(environment)), wake_(std::move(wake)) {
  for (size_t i = 0; i < kNumLanes; ++i) {
    waiting_[i].ring.resize(static_cast<size_t>(plan_.endpoint.lanes[i].recv_slots));
  }
}

Result<std::unique_ptr<Session>> Session::Start(const SessionPlan& plan, Environment environment) {
  Fd wake(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake.valid()) return Status(StatusCode::kResourceExhausted, "too many open files (raise the limit: ulimit -n)");
  std::unique_ptr<Session> session(new Session(plan, std::move(environment), std::move(wake)));
  try {
    session->compute_thread_ = std::thread(&Session::ComputeThread, session.get());
    session->loop_thread_ = std::thread(&Session::LoopThread, session.get());
  } catch (const std::system_error& error) {
    return NoThread(error);
  }
  return session;
}

Session::~Session() {
  RequestEnd();
  if (loop_thread_.joinable()) loop_thread_.join();
  to_compute_.Close();
  if (compute_thread_.joinable()) compute_thread_.join();
}

std::optional<Result<KvStats>> Session::opened() const {
  std::lock_guard lock(mutex_);
  return opened_;
}

std::optional<Status> Session::ended() const {
  std::lock_guard lock(mutex_);
  return ended_;
}

void Session::Serve(std::unique_ptr<Endpoint> endpoint) {
  {
    std::lock_guard lock(mutex_);
    given_endpoint_ = std::move(endpoint);
  }
  Wake();
}

void Session::RequestEnd() {
  end_requested_.store(true, std::memory_order_release);
  Wake();
}

void Session::Wake() {
  uint64_t one = 1;
  // Fails only when the counter is full, and then the reader wakes anyway.
  [[maybe_unused]] ssize_t count = write(wake_.get(), &one, sizeof(one));
}

void Session::Sleep(int endpoint_fd) {
  pollfd fds[2] = {{wake_.get(), POLLIN, 0}, {endpoint_fd, POLLIN, 0}};
  poll(fds, endpoint_fd >= 0 ? 2 : 1, -1);
  if ((fds[0].revents & POLLIN) == 0) return;
  uint64_t value = 0;
  [[maybe_unused]] ssize_t count = read(wake_.get(), &value, sizeof(value));
}

Result<std::unique_ptr<AttentionService>> Session::CreateService(ComputePool* pool) {
  // Its tables follow from what the peer asked for.
  try {
    return AttentionService::Create(plan_.shape, plan_.limits, environment_.memory, environment_.kernel,
                                    kernels::CodecOf(*environment_.kernel, plan_.kv), pool);
  } catch (const std::bad_alloc&) {
    return Status(StatusCode::kResourceExhausted, "too little memory for the tables of a session of this size");
  }
}

void Session::ComputeThread() {
  std::optional<ComputePool> pool;
  try {
    pool.emplace(environment_.threads, environment_.topology, environment_.pin);
  } catch (const std::system_error& error) {
    return Open(NoThread(error));
  }
  Compute(&*pool);
}

void Session::Open(Result<KvStats> opened) {
  {
    std::lock_guard lock(mutex_);
    opened_ = std::move(opened);
  }
  environment_.notify();
}

void Session::Compute(ComputePool* pool) {
  Result<std::unique_ptr<AttentionService>> service = CreateService(pool);
  if (!service.ok()) return Open(service.status());
  MessageHandler handler(service->get(), &counters_);
  Open((*service)->stats());
  Job job;
  while (to_compute_.WaitPop(job)) {
    job.status = handler.Handle(job.in, job.out);
    CHECK(from_compute_.TryPush(std::move(job)));
    Wake();
  }
}

void Session::LoopThread() {
  Status reason;
  if (WaitForEndpoint()) {
    reason = ServeMessages();
    DrainCompute();
    endpoint_.reset();
  }
  to_compute_.Close();
  compute_thread_.join();
  {
    std::lock_guard lock(mutex_);
    given_endpoint_.reset();
    ended_ = std::move(reason);
  }
  environment_.notify();
}

bool Session::WaitForEndpoint() {
  while (!end_requested_.load(std::memory_order_acquire)) {
    {
      std::lock_guard lock(mutex_);
      endpoint_ = std::move(given_endpoint_);
    }
    if (endpoint_ != nullptr) return true;
    Sleep(-1);
  }
  return false;
}

Status Session::ServeMessages() {
  while (!end_requested_.load(std::memory_order_acquire)) {
    bool progress = false;
    Status status = TakeCompletions(progress);
    if (status.ok()) status = Dispatch(progress);
    if (!status.ok()) {
      SendFault(status);
      return status;
    }
    FD_RETURN_IF_ERROR(Receive(progress));
    if (!progress && endpoint_->PrepareWait()) Sleep(endpoint_->wait_fd());
  }
  return OkStatus();
}

Status Session::TakeCompletions(bool& progress) {
  Job job;
  while (from_compute_.TryPop(job)) {
    progress = true;
    --in_flight_;
    endpoint_->Release(job.in);
    if (!job.status.ok()) return job.status;
    // A stream that fails here is reported by the next Poll.
    if (job.out.index >= 0) (void)endpoint_->Post(job.out);
  }
  return OkStatus();
}

Status Session::Receive(bool& progress) {
  Result<RecvSlot> slot = endpoint_->Poll();
  if (!slot.ok()) return slot.status().code() == StatusCode::kWouldBlock ? OkStatus() : slot.status();
  Waiting& waiting = waiting_[static_cast<size_t>(slot->lane)];
  waiting.ring[(waiting.first + waiting.count) % waiting.ring.size()] = *slot;
  ++waiting.count;
  progress = true;
  return OkStatus();
}

Status Session::Dispatch(bool& progress) {
  for (int tries = 0; tries < kNumLanes && in_flight_ < kMaxInFlight; ++tries) {
    auto lane = static_cast<size_t>(first_lane_);
    first_lane_ = (first_lane_ + 1) % kNumLanes;  // lanes take turns: neither starves
    Waiting& waiting = waiting_[lane];
    if (waiting.count == 0) continue;
    Job job;
    job.in = waiting.ring[waiting.first];
    FD_ASSIGN_OR_RETURN(bool reply, MessageHandler::NeedsReply(job.in));
    if (reply) {
      Result<SendSlot> out = endpoint_->Acquire(job.in.lane);
      if (!out.ok()) continue;  // all answers are still on their way
      job.out = *out;
    }
    waiting.first = (waiting.first + 1) % waiting.ring.size();
    --waiting.count;
    ++in_flight_;
    tries = -1;
    progress = true;
    CHECK(to_compute_.TryPush(std::move(job)));
  }
  return OkStatus();
}

void Session::SendFault(const Status& status) {
  // Best effort: the control connection says it again.
  Result<SendSlot> slot = endpoint_->Acquire(Lane::kBulk);
  if (!slot.ok()) return;
  MessageHeader& header = *slot->header();
  header = MessageHeader();
  header.type = static_cast<uint16_t>(MessageType::kFault);
  size_t size = std::min(status.message().size(), slot->bytes.size() - sizeof(MessageHeader));
  std::memcpy(slot->payload(), status.message().data(), size);
  header.payload_bytes = static_cast<uint32_t>(size);
  (void)endpoint_->Post(*slot);
}

void Session::DrainCompute() {
  // The compute thread still writes to slots of the endpoint.
  Job job;
  while (in_flight_ > 0) {
    if (from_compute_.TryPop(job)) {
      --in_flight_;
    } else {
      Sleep(-1);
    }
  }
}

}  // namespace fastdecode::rworker
