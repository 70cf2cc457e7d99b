#include "sworker/rworkers/rworker_pool.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <limits>
#include <list>
#include <mutex>
#include <thread>

#include "common/base/fd.h"
#include "common/transport/tcp/socket.h"
#include "common/wire/handshake.h"
#include "sworker/rworkers/rworker_link.h"

namespace fastdecode {
namespace {

constexpr int64_t kNsPerMs = 1'000'000;

class RWorkerPoolImpl final : public RWorkerPool {
 public:
  RWorkerPoolImpl(RWorkerLink::Context context, Fd wake)
      : wake_(std::move(wake)), resolver_([this] { Wake(); }), context_(std::move(context)) {
    context_.resolver = &resolver_;
  }

  ~RWorkerPoolImpl() override {
    stop_.store(true, std::memory_order_release);
    Wake();
    if (thread_.joinable()) thread_.join();
  }

  void Add(const std::string& address, const HostPort& host_port) {
    links_.emplace_back(context_, size(), address, host_port);
  }
  void Begin() { thread_ = std::thread(&RWorkerPoolImpl::Run, this); }

  void ReportLost(int index, uint32_t incarnation, const Status& reason) override {
    {
      std::lock_guard lock(mutex_);
      reports_.push_back({index, incarnation, reason});
    }
    Wake();
  }

  RWorkerStats stats(int index) const override { return link(index).stats(); }

  std::vector<Missing> missing() const override {
    std::vector<Missing> missing;
    int index = 0;
    for (const RWorkerLink& link : links_) {
      RWorkerLink::State state = link.state();
      if (!state.status.ok()) missing.push_back({index, link.address(), std::move(state.status)});
      ++index;
    }
    return missing;
  }

  bool WaitAllJoined(std::chrono::milliseconds timeout) override {
    auto deadline = std::chrono::steady_clock::now() + timeout;
    std::unique_lock lock(mutex_);
    while (true) {
      bool all = true;
      for (const RWorkerLink& link : links_) {
        RWorkerLink::State state = link.state();
        if (state.final) return false;
        all = all && state.status.ok();
      }
      if (all) return true;
      if (changed_.wait_until(lock, deadline) == std::cv_status::timeout) return false;
    }
  }

  int size() const override { return static_cast<int>(links_.size()); }

 private:
  struct Report {
    int index;
    uint32_t incarnation;
    Status reason;
  };

  const RWorkerLink& link(int index) const { return *std::next(links_.begin(), index); }
  RWorkerLink& link(int index) { return *std::next(links_.begin(), index); }

  void Wake() {
    uint64_t one = 1;
    [[maybe_unused]] ssize_t count = write(wake_.get(), &one, sizeof(one));
  }

  void Run() {
    std::vector<pollfd> fds;
    std::vector<Report> reports;
    while (!stop_.load(std::memory_order_acquire)) {
      {
        std::lock_guard lock(mutex_);
        std::swap(reports, reports_);
      }
      for (const Report& report : reports) link(report.index).ReportLost(report.incarnation, report.reason);
      reports.clear();
      // Each call costs a few reads that would block: nothing, even for hundreds.
      for (RWorkerLink& link : links_) link.Advance();
      {
        std::lock_guard lock(mutex_);  // so that no change falls between a waiter's look and its wait
      }
      changed_.notify_all();
      Sleep(fds);
    }
    for (RWorkerLink& link : links_) link.Goodbye();
  }

  void Sleep(std::vector<pollfd>& fds) {
    fds.clear();
    fds.push_back({wake_.get(), POLLIN, 0});
    int64_t deadline = std::numeric_limits<int64_t>::max();
    for (const RWorkerLink& link : links_) {
      link.AppendWants(fds);
      deadline = std::min(deadline, link.next_deadline_ns());
    }
    int timeout_ms = -1;
    if (deadline != std::numeric_limits<int64_t>::max()) {
      int64_t wait_ns = std::max<int64_t>(0, deadline - context_.clock->NowNs());
      timeout_ms = static_cast<int>(std::min<int64_t>(wait_ns / kNsPerMs + 1, 60'000));
    }
    poll(fds.data(), fds.size(), timeout_ms);
    if ((fds[0].revents & POLLIN) == 0) return;
    uint64_t value = 0;
    [[maybe_unused]] ssize_t count = read(wake_.get(), &value, sizeof(value));
  }

  const Fd wake_;
  Resolver resolver_;
  RWorkerLink::Context context_;
  std::list<RWorkerLink> links_;  // its length and order never change after Begin
  std::atomic<bool> stop_{false};

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Report> reports_;  // under mutex_
  std::thread thread_;
};

Status CheckOptions(const SessionOptions& options) {
  if (options.shape.num_layers <= 0 || options.shape.num_heads <= 0 || options.shape.num_kv_heads <= 0 ||
      options.shape.head_dim <= 0 || options.max_context <= 0 || options.max_sequences <= 0 || options.max_rows <= 0 ||
      options.mini_batches <= 0 || options.decode_slots_per_mini_batch <= 0 || options.bulk_send_slots <= 0 ||
      options.bulk_recv_slots <= 0 || options.heartbeat_ms <= 0) {
    return InvalidArgument("session options: every number must be positive");
  }
  if (options.peer_timeout_ms < 2 * options.heartbeat_ms) {
    return InvalidArgument("peer_timeout_ms " + std::to_string(options.peer_timeout_ms) +
                           " is below two heartbeats of " + std::to_string(options.heartbeat_ms) + " ms");
  }
  return OkStatus();
}

}  // namespace

Result<std::unique_ptr<RWorkerPool>> RWorkerPool::Start(std::vector<std::string> addresses, const Secret& secret,
                                                        const SessionOptions& options, AllocateSlots allocate,
                                                        RWorkerCallbacks callbacks) {
  FD_RETURN_IF_ERROR(InitCrypto());
  FD_RETURN_IF_ERROR(CheckOptions(options));
  if (addresses.empty()) return InvalidArgument("no R-worker's address is given");
  Fd wake(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake.valid()) return Unavailable("cannot make an event descriptor: " + DescribeErrno(errno));
  auto carriers = std::make_shared<const Carriers>(options.transport);
  FD_RETURN_IF_ERROR(carriers->Check(options.transport.kind));
  RWorkerLink::Context context{
      secret, options, std::move(carriers), std::move(allocate), std::move(callbacks), nullptr, &SteadyClock::Get()};
  auto pool = std::make_unique<RWorkerPoolImpl>(std::move(context), std::move(wake));
  for (const std::string& address : addresses) {
    FD_ASSIGN_OR_RETURN(HostPort host_port, ParseHostPort(address));
    pool->Add(address, host_port);
  }
  pool->Begin();
  return std::unique_ptr<RWorkerPool>(std::move(pool));
}

}  // namespace fastdecode
