// Holds one end of a verbs connection for a suite on another host: far_end.h.
//
//   far_end ADDRESS-OF-THE-SUITE'S-HOST      until it is killed, for one suite after the other
#include "tests/rdma/far_end.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <thread>
#include <vector>

#include "common/base/fd.h"
#include "common/base/logging.h"
#include "tests/contract/transport/raw_verbs_end.h"
#include "tests/contract/transport/verbs_ends.h"

namespace fastdecode {
namespace {

constexpr useconds_t kRedialUs = 100'000;

Fd DialUntilThere(const char* host) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(kFarPort);
  CHECK_EQ(inet_pton(AF_INET, host, &address.sin_addr), 1) << host;
  while (true) {
    Fd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0) {
      const int on = 1;
      CHECK_EQ(setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)), 0);
      return socket;
    }
    usleep(kRedialUs);
  }
}

class FarEnd {
 public:
  FarEnd(int calls, std::shared_ptr<VerbsCut> cut) : calls_(calls), cut_(std::move(cut)) {}

  void ServeUntilTheSuiteEnds() {
    while (true) {
      pollfd fds[2] = {{calls_, POLLIN, 0}, {armed_ ? end_->wait_fd() : -1, POLLIN, 0}};
      poll(fds, 2, -1);
      if (fds[0].revents != 0) {
        FarCall call;
        if (!FarRead(calls_, &call, sizeof(call))) return;
        bytes_.resize(call.bytes);
        if (!FarRead(calls_, bytes_.data(), call.bytes)) return;
        armed_ = false;
        Handle(call);
      } else if (fds[1].revents != 0) {
        armed_ = false;
        FarAnswer bell;
        bell.bell = true;
        Answer(bell, nullptr, 0);
      }
    }
  }

 private:
  void Answer(FarAnswer answer, const void* bytes, size_t size) {
    answer.bytes = static_cast<uint32_t>(size);
    (void)FarWriteBoth(calls_, answer, bytes, size);  // if the suite is gone, the next read says so
  }
  void Answer(const Status& status) {
    FarAnswer answer;
    answer.status = status.code();
    Answer(answer, status.message().data(), status.message().size());
  }
  void Answer(bool yes) {
    FarAnswer answer;
    answer.yes = yes;
    Answer(answer, nullptr, 0);
  }

  void Handle(const FarCall& call) {
    switch (call.what) {
      case FarCall::What::kCreate:
        return Create();
      case FarCall::What::kConnect:
        return Answer(unconnected_->Connect(ParsedHello(bytes_, unconnected_->options()), 0, 0));
      case FarCall::What::kAcquire:
        return Acquire(static_cast<Lane>(call.lane));
      case FarCall::What::kPost:
        return Post(call);
      case FarCall::What::kAbandon:
        end_->Abandon(Acquired(call));
        return Answer(OkStatus());
      case FarCall::What::kPoll:
        return Poll();
      case FarCall::What::kRelease:
        end_->Release(received_[call.lane].at(call.index));
        return Answer(OkStatus());
      case FarCall::What::kPrepareWait:
        armed_ = end_->PrepareWait();
        return Answer(armed_);
      case FarCall::What::kStats: {
        const EndpointStats stats = end_->stats();
        return Answer(FarAnswer(), &stats, sizeof(stats));
      }
      case FarCall::What::kDestroy:
        end_.reset();
        return Answer(OkStatus());
      case FarCall::What::kCreateRaw: {
        VerbsHello hello;
        CHECK_EQ(bytes_.size(), sizeof(hello));
        std::memcpy(static_cast<void*>(&hello), bytes_.data(), sizeof(hello));
        raw_ = std::make_unique<RawVerbsEnd>(hello);
        return Answer(FarAnswer(), &raw_->hello(), sizeof(VerbsHello));
      }
      case FarCall::What::kWriteRaw:
        return Answer(raw_->Write(static_cast<Lane>(call.lane), bytes_));
      case FarCall::What::kDestroyRaw:
        raw_.reset();
        return Answer(OkStatus());
    }
  }

  void Create() {
    FarOptions wanted;
    CHECK_EQ(bytes_.size(), sizeof(wanted));
    std::memcpy(static_cast<void*>(&wanted), bytes_.data(), sizeof(wanted));
    EndpointOptions options;
    options.lanes = wanted.lanes;
    options.incarnation = wanted.incarnation;
    options.peer = wanted.peer;
    CHECK(end_ == nullptr) << "one endpoint at a time";
    std::unique_ptr<VerbsEndpoint> end = MakeVerbsEnd(options);
    unconnected_ = end.get();
    end_ = MakeCuttable(std::move(end), cut_);
    Answer(FarAnswer(), &unconnected_->hello(), sizeof(VerbsHello));
  }

  SendSlot Acquired(const FarCall& call) { return acquired_[call.lane].at(call.index); }

  void Acquire(Lane lane) {
    const Result<SendSlot> slot = end_->Acquire(lane);
    if (!slot.ok()) return Answer(slot.status());
    CHECK_EQ(reinterpret_cast<uintptr_t>(slot->bytes.data()) % 64, 0U);
    CHECK_EQ(slot->bytes.size(), end_->options().lanes[static_cast<size_t>(lane)].slot_bytes);
    acquired_[static_cast<size_t>(lane)][slot->index] = *slot;
    FarAnswer answer;
    answer.index = slot->index;
    Answer(answer, nullptr, 0);
  }

  void Post(const FarCall& call) {
    const SendSlot slot = Acquired(call);
    std::copy(bytes_.begin(), bytes_.end(), slot.bytes.begin());
    Answer(end_->Post(slot));
  }

  void Poll() {
    const Result<RecvSlot> slot = end_->Poll();
    if (!slot.ok()) return Answer(slot.status());
    CHECK_EQ(reinterpret_cast<uintptr_t>(slot->bytes.data()) % 64, 0U);
    CHECK_EQ(slot->bytes.size(), sizeof(MessageHeader) + slot->header().payload_bytes);
    received_[static_cast<size_t>(slot->lane)][slot->index] = *slot;
    FarAnswer answer;
    answer.lane = static_cast<uint8_t>(slot->lane);
    answer.index = slot->index;
    answer.arrived_ns = slot->arrived_ns;
    Answer(answer, slot->bytes.data(), slot->bytes.size());
  }

  const int calls_;
  const std::shared_ptr<VerbsCut> cut_;
  std::vector<std::byte> bytes_;  // that came with the call
  std::unique_ptr<Endpoint> end_;
  VerbsEndpoint* unconnected_ = nullptr;  // end_, as its own class
  std::unique_ptr<RawVerbsEnd> raw_;
  std::array<std::map<int, SendSlot>, kNumLanes> acquired_;
  std::array<std::map<int, RecvSlot>, kNumLanes> received_;
  bool armed_ = false;  // the suite's process may be asleep
};

void ServeCuts(int socket, VerbsCut* cut) {
  char byte = 0;
  while (FarRead(socket, &byte, 1)) {
    cut->Cut();
    if (!FarWrite(socket, &byte, 1)) return;
  }
}

[[noreturn]] void Run(const char* host) {
  while (true) {
    const Fd calls = DialUntilThere(host);
    const Fd cuts = DialUntilThere(host);
    auto cut = std::make_shared<VerbsCut>();
    std::thread cutter(ServeCuts, cuts.get(), cut.get());
    FarEnd(calls.get(), cut).ServeUntilTheSuiteEnds();
    shutdown(cuts.get(), SHUT_RDWR);
    cutter.join();
  }
}

}  // namespace
}  // namespace fastdecode

int main(int argc, char** argv) {
  fastdecode::InitLogging(argv[0]);
  if (argc != 2) {
    std::fprintf(stderr, "usage: far_end ADDRESS\n");
    return 2;
  }
  fastdecode::Run(argv[1]);
}
