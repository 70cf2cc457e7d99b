// An S-worker's links without a model: joins R-workers and keeps a small message going round
// with each, and says what happens, a line an event:
//
//   joined INDEX INCARNATION TRANSPORT (WHY) | lost INDEX INCARNATION REASON | missing INDEX REASON | traffic INDEX
//   ROUNDS
//
//   link_probe [--transport=KIND] [--gid_index=N] [--memory_s=S] SECRET_FILE ADDRESS ...
//
// --memory_s: its slots' memory takes so long to come.
//
// Exit status 1: it cannot start, and says why.
#include <poll.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "common/base/clock.h"
#include "common/base/logging.h"
#include "common/config/secret.h"
#include "sworker/rworkers/rworker_pool.h"

namespace fastdecode {
namespace {

constexpr int64_t kReportNs = 250'000'000;

struct Event {
  int index = 0;
  uint32_t incarnation = 0;
  std::unique_ptr<Endpoint> endpoint;  // null: lost
  std::string text;
};

struct Link {
  std::unique_ptr<Endpoint> endpoint;
  uint32_t incarnation = 0;
  bool waiting = false;  // for the answer
  uint64_t rounds = 0;
};

SessionOptions Options(const TransportSettings& transport) {
  SessionOptions options;
  options.shape = {2, 4, 2, 16};
  options.max_context = 256;
  options.max_sequences = 32;
  options.max_rows = 16;
  options.transport = transport;
  options.name = "link_probe";
  return options;
}

// One step of a link's traffic; not ok: the endpoint failed.
Status Advance(Link& link) {
  if (!link.waiting) {
    Result<SendSlot> slot = link.endpoint->Acquire(Lane::kBulk);
    if (slot.status().code() == StatusCode::kWouldBlock) return OkStatus();
    FD_RETURN_IF_ERROR(slot.status());
    *slot->header() = MessageHeader();
    slot->header()->type = static_cast<uint16_t>(MessageType::kFree);
    slot->header()->sequence = link.rounds;  // unknown ones are freed successfully
    FD_RETURN_IF_ERROR(link.endpoint->Post(*slot));
    link.waiting = true;
  }
  Result<RecvSlot> slot = link.endpoint->Poll();
  if (slot.status().code() == StatusCode::kWouldBlock) return OkStatus();
  FD_RETURN_IF_ERROR(slot.status());
  CHECK_EQ(slot->header().sequence, link.rounds) << "an answer to another message";
  link.endpoint->Release(*slot);
  link.waiting = false;
  ++link.rounds;
  return OkStatus();
}

class Probe {
 public:
  explicit Probe(size_t num_rworkers) : links_(num_rworkers), missing_(num_rworkers) {}

  Status Start(std::vector<std::string> addresses, const Secret& secret, const TransportSettings& transport,
               unsigned memory_s) {
    RWorkerCallbacks callbacks;
    callbacks.on_joined = [this](int index, const RWorkerGrant& grant, std::unique_ptr<Endpoint> endpoint) {
      std::lock_guard lock(mutex_);
      events_.push_back({index, grant.incarnation, std::move(endpoint),
                         NameOf(grant.transport) + (" (" + grant.transport_why + ")")});
    };
    callbacks.on_lost = [this](int index, uint32_t incarnation, const Status& reason) {
      std::lock_guard lock(mutex_);
      events_.push_back({index, incarnation, nullptr, reason.message()});
    };
    const auto allocate = [memory_s](size_t bytes) {
      sleep(memory_s);
      return AllocatePageableSlots(bytes);
    };
    FD_ASSIGN_OR_RETURN(pool_,
                        RWorkerPool::Start(std::move(addresses), secret, Options(transport), allocate, callbacks));
    return OkStatus();
  }

  [[noreturn]] void Run() {
    int64_t next_report_ns = 0;
    while (true) {
      TakeEvents();
      for (size_t i = 0; i < links_.size(); ++i) AdvanceLink(i);
      if (NowNs() >= next_report_ns) {
        next_report_ns = NowNs() + kReportNs;
        Report();
      }
      Sleep();
    }
  }

 private:
  void Report() {
    for (size_t i = 0; i < links_.size(); ++i) {
      std::printf("traffic %zu %llu\n", i, static_cast<unsigned long long>(links_[i].rounds));
    }
    for (const RWorkerPool::Missing& missing : pool_->missing()) {
      std::string& last = missing_[static_cast<size_t>(missing.index)];
      if (last != missing.reason.message()) {
        std::printf("missing %d %s\n", missing.index, missing.reason.message().c_str());
      }
      last = missing.reason.message();
    }
    std::fflush(stdout);
  }

  void TakeEvents() {
    std::deque<Event> events;
    {
      std::lock_guard lock(mutex_);
      events.swap(events_);
    }
    for (Event& event : events) {
      const bool joined = event.endpoint != nullptr;
      Link& link = links_[static_cast<size_t>(event.index)];
      link.endpoint = std::move(event.endpoint);
      link.incarnation = event.incarnation;
      link.waiting = false;
      std::printf("%s %d %u %s\n", joined ? "joined" : "lost", event.index, event.incarnation, event.text.c_str());
      std::fflush(stdout);
    }
  }

  void AdvanceLink(size_t index) {
    Link& link = links_[index];
    if (link.endpoint == nullptr) return;
    const Status status = Advance(link);
    if (status.ok()) return;
    pool_->ReportLost(static_cast<int>(index), link.incarnation, status);
    link.endpoint.reset();
  }

  void Sleep() {
    std::vector<pollfd> fds;
    for (Link& link : links_) {
      if (link.endpoint == nullptr) continue;
      if (!link.waiting || !link.endpoint->PrepareWait()) return;
      fds.push_back({link.endpoint->wait_fd(), POLLIN, 0});
    }
    poll(fds.data(), fds.size(), 20);
  }

  std::mutex mutex_;
  std::deque<Event> events_;  // under mutex_
  std::vector<Link> links_;
  std::vector<std::string> missing_;  // why, as it was said last
  std::unique_ptr<RWorkerPool> pool_;
};

Status Run(const std::vector<std::string>& arguments) {
  TransportSettings transport;
  unsigned memory_s = 0;
  std::vector<std::string> words;
  for (const std::string& argument : arguments) {
    const std::string value = argument.substr(argument.find('=') + 1);
    if (argument.rfind("--transport=", 0) == 0) {
      FD_ASSIGN_OR_RETURN(transport.kind, ParseTransportKind(value));
    } else if (argument.rfind("--gid_index=", 0) == 0) {
      transport.verbs.gid_index = std::atoi(value.c_str());
    } else if (argument.rfind("--memory_s=", 0) == 0) {
      memory_s = static_cast<unsigned>(std::atoi(value.c_str()));
    } else {
      words.push_back(argument);
    }
  }
  if (words.size() < 2) {
    return InvalidArgument(
        "usage: link_probe [--transport=KIND] [--gid_index=N] [--memory_s=S] SECRET_FILE ADDRESS ...");
  }
  FD_ASSIGN_OR_RETURN(const Secret secret, LoadSecret(words[0]));
  words.erase(words.begin());
  Probe probe(words.size());
  FD_RETURN_IF_ERROR(probe.Start(words, secret, transport, memory_s));
  probe.Run();
}

}  // namespace
}  // namespace fastdecode

int main(int argc, char** argv) {
  fastdecode::InitLogging(argv[0]);
  const fastdecode::Status status = fastdecode::Run({argv + 1, argv + argc});
  std::fprintf(stderr, "link_probe: %s\n", status.message().c_str());
  return 1;
}
