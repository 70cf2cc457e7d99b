// Which transport is chosen, why, and what happens to those who come for something else.
#include "common/transport/negotiation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <future>
#include <list>

#include "common/transport/shm/unix_socket.h"
#include "common/transport/tcp/socket.h"
#include "common/wire/handshake.h"

namespace fastdecode {
namespace {

using testing::HasSubstr;

TransportSettings Named(TransportKind kind) {
  TransportSettings settings;
  settings.kind = kind;
  return settings;
}

ByteChannel Channel(int descriptor, const char* peer) { return {Fd(descriptor), peer}; }

// Both sides of a control connection behind its proofs, and the R-worker's port.
class Meeting {
 public:
  Meeting(TransportKind s_kind, TransportKind r_kind, AllocateSlots s_allocate = AllocatePageableSlots)
      : s_carriers_(Named(s_kind)), r_carriers_(Named(r_kind)), listener_(ListenTcp({"127.0.0.1", 0}).value()) {
    EXPECT_TRUE(InitCrypto().ok());
    int sockets[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, sockets), 0);
    s_channel_ = Channel(sockets[0], "rworker X");
    r_channel_ = Channel(sockets[1], "S-worker Y");
    CarrierContext context;
    context.endpoint.lanes = {LaneOptions{4096, 3, 2}, LaneOptions{8192, 2, 4}};
    context.endpoint.incarnation = 7;
    context.endpoint.peer = "rworker X";
    context.session_key.fill(9);
    context.allocate = std::move(s_allocate);
    context.addresses = {LocalAddress(listener_.get()).value()};
    context.clock = &SteadyClock::Get();
    CarrierContext r_context = context;
    for (LaneOptions& lane : r_context.endpoint.lanes) std::swap(lane.send_slots, lane.recv_slots);
    r_context.endpoint.peer = "S-worker Y";
    r_context.allocate = AllocatePageableSlots;
    s_.emplace(s_carriers_, context);
    r_.emplace(r_carriers_, r_context);
  }

  // Both control threads in one, until both sides have an endpoint or one has none.
  void Run() {
    for (int i = 0; i < 5000 && !Done(); ++i) {
      StepR();
      StepS();
      poll(nullptr, 0, i < 100 ? 0 : 1);
    }
  }

  void StepS() {
    ByteChannel::Frame frame;
    while (s_channel_.ReadFrame(frame).ok()) EXPECT_TRUE(s_->OnAnswer(frame.as<TransportAnswer>()).ok());
    Take(s_->Advance(s_channel_), &s_chosen, &s_status);
  }

  void StepR() {
    ByteChannel::Frame frame;
    while (r_channel_.ReadFrame(frame).ok()) {
      const Status status = frame.type == FrameType::kTransportOffer
                                ? r_->OnOffer(frame.as<TransportOffer>(), r_channel_)
                                : r_->OnReady(frame.as<TransportReady>());
      if (!status.ok()) r_status = status;
    }
    AcceptStreams();
    Take(r_->Advance(r_channel_), &r_chosen, &r_status);
  }

  void ExpectAgreed(TransportKind kind) {
    ASSERT_TRUE(s_chosen.has_value()) << s_status.ToString();
    ASSERT_TRUE(r_chosen.has_value()) << r_status.ToString();
    EXPECT_EQ(s_chosen->kind, kind) << s_chosen->why;
    EXPECT_EQ(r_chosen->kind, kind);
    EXPECT_EQ(r_chosen->why, s_chosen->why);
    for (auto [from, to] : {std::pair{&s_chosen, &r_chosen}, std::pair{&r_chosen, &s_chosen}}) {
      SendSlot slot = (*from)->endpoint->Acquire(Lane::kBulk).value();
      *slot.header() = MessageHeader();
      slot.header()->type = static_cast<uint16_t>(MessageType::kFree);
      slot.header()->sequence = 42;
      ASSERT_TRUE((*from)->endpoint->Post(slot).ok());
      Result<RecvSlot> got = Status(StatusCode::kWouldBlock, {});
      for (int i = 0; i < 5000 && !got.ok(); ++i) {
        got = (*to)->endpoint->Poll();
        if (!got.ok()) poll(nullptr, 0, 1);
      }
      ASSERT_TRUE(got.ok()) << got.status().ToString();
      EXPECT_EQ(got->header().sequence, 42U);
    }
  }

  DialNegotiation& s() { return *s_; }
  AcceptNegotiation& r() { return *r_; }
  ByteChannel& r_channel() { return r_channel_; }
  ByteChannel& s_channel() { return s_channel_; }

  std::optional<ChosenTransport> s_chosen, r_chosen;
  Status s_status, r_status;

 private:
  bool Done() const { return (s_chosen.has_value() && r_chosen.has_value()) || !s_status.ok() || !r_status.ok(); }

  static void Take(Result<ChosenTransport> result, std::optional<ChosenTransport>* chosen, Status* status) {
    if (result.ok()) {
      *chosen = *std::move(result);
    } else if (result.status().code() != StatusCode::kWouldBlock) {
      *status = result.status();
    }
  }

  // As the R-worker's control thread does it.
  void AcceptStreams() {
    Result<Accepted> accepted = AcceptTcp(listener_.get());
    if (accepted.ok()) streams_.push_back({ByteChannel(std::move(accepted->socket), "a stream"), {}, false});
    AuthKey key;
    key.fill(9);
    for (auto& stream : streams_) {
      Hello hello;
      if (!stream.challenged && stream.channel.Read(hello).ok()) {
        EXPECT_TRUE(stream.channel.Write(stream.handshake.OnHello(hello).value()).ok());
        stream.challenged = true;
      }
      Proof proof;
      if (!stream.challenged || !stream.channel.open() || !stream.channel.Read(proof).ok()) continue;
      EXPECT_TRUE(stream.channel.Write(stream.handshake.OnProof(key, proof).value()).ok());
      const Lane lane = stream.handshake.purpose() == Purpose::kBulk ? Lane::kBulk : Lane::kDecode;
      ASSERT_TRUE(r_->WantsStream(lane));
      r_->TakeStream(lane, stream.channel.TakeSocket());
    }
  }

  struct Stream {
    ByteChannel channel;
    ServerHandshake handshake;
    bool challenged;
  };
  const Carriers s_carriers_, r_carriers_;
  Fd listener_;
  ByteChannel s_channel_, r_channel_;
  std::optional<DialNegotiation> s_;
  std::optional<AcceptNegotiation> r_;
  std::list<Stream> streams_;
};

// Files of this process, memory included, may not grow beyond `bytes` meanwhile.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) {
    EXPECT_EQ(getrlimit(RLIMIT_FSIZE, &before_), 0);
    const rlimit limit{bytes, before_.rlim_max};
    EXPECT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
  }
  ~FileSizeLimit() { EXPECT_EQ(setrlimit(RLIMIT_FSIZE, &before_), 0); }

 private:
  rlimit before_{};
};

TEST(Negotiation, AutoIsSharedMemoryOnOneHostAndSaysWhatWasOut) {
  Meeting meeting(TransportKind::kAuto, TransportKind::kAuto);
  meeting.Run();
  meeting.ExpectAgreed(TransportKind::kShm);
  EXPECT_THAT(meeting.s_chosen->why, testing::StartsWith("auto; not verbs: "));
}

TEST(Negotiation, ANamedKindIsUsed) {
  for (TransportKind kind : {TransportKind::kTcp, TransportKind::kShm}) {
    Meeting meeting(kind, TransportKind::kAuto);
    meeting.Run();
    meeting.ExpectAgreed(kind);
    EXPECT_EQ(meeting.s_chosen->why, "named by transport.kind");
  }
}

TEST(Negotiation, WhatTheRWorkerWasToldHoldsForAuto) {
  Meeting meeting(TransportKind::kAuto, TransportKind::kTcp);
  meeting.Run();
  meeting.ExpectAgreed(TransportKind::kTcp);
  EXPECT_THAT(meeting.s_chosen->why,
              HasSubstr("not shm: rworker X refuses: this R-worker was started with --transport tcp"));
}

TEST(Negotiation, ANamedKindIsNeverReplaced) {
  Meeting meeting(TransportKind::kShm, TransportKind::kTcp);
  meeting.Run();
  EXPECT_FALSE(meeting.s_chosen.has_value());
  EXPECT_THAT(meeting.s_status.message(),
              HasSubstr("transport shm: rworker X refuses: this R-worker was started with"));
  EXPECT_TRUE(meeting.s().refused());
}

TEST(Negotiation, AFileSizeLimitBelowTheMemoryIsSaidAndAutoGoesOn) {
  const FileSizeLimit limit(8192);
  Meeting meeting(TransportKind::kAuto, TransportKind::kAuto);
  meeting.Run();
  meeting.ExpectAgreed(TransportKind::kTcp);
  EXPECT_THAT(meeting.s_chosen->why, HasSubstr("above this process's file-size limit of 8192 bytes (RLIMIT_FSIZE)"));
  Meeting named(TransportKind::kShm, TransportKind::kAuto);
  named.Run();
  EXPECT_EQ(named.s_status.code(), StatusCode::kResourceExhausted) << named.s_status.ToString();
  EXPECT_TRUE(named.s().refused());
}

TEST(Negotiation, AnotherHostIsToldApart) {
  Meeting meeting(TransportKind::kAuto, TransportKind::kAuto);
  TransportOffer offer;
  offer.kind = static_cast<uint16_t>(TransportKind::kShm);
  offer.size = 36;
  ASSERT_TRUE(meeting.r().OnOffer(offer, meeting.r_channel()).ok());
  meeting.StepR();
  ByteChannel::Frame frame;
  ASSERT_TRUE(meeting.s_channel().ReadFrame(frame).ok());
  const auto answer = frame.as<TransportAnswer>();
  EXPECT_EQ(answer.refusal, static_cast<uint16_t>(RefusalCode::kUnsupported));
  EXPECT_THAT(std::string(reinterpret_cast<const char*>(answer.bytes), answer.size), HasSubstr("another host"));
}

TEST(Negotiation, MemoryThatTakesLongHoldsNobodyUp) {
  std::promise<void> there;
  Meeting meeting(TransportKind::kTcp, TransportKind::kAuto, [&](size_t bytes) {
    EXPECT_EQ(there.get_future().wait_for(std::chrono::seconds(10)), std::future_status::ready) << "it was waited for";
    return AllocatePageableSlots(bytes);
  });
  for (int i = 0; i < 3; ++i) meeting.StepS();
  EXPECT_EQ(meeting.s().state(), DialNegotiation::State::kOffering);
  there.set_value();
  std::vector<pollfd> fds;
  meeting.s().AppendWants(&fds);
  ASSERT_EQ(fds.size(), 1U);
  EXPECT_EQ(poll(fds.data(), 1, 10'000), 1) << "who sleeps is woken";
  meeting.Run();
  meeting.ExpectAgreed(TransportKind::kTcp);
}

TEST(Negotiation, WhatMakesNoSenseEndsTheSession) {
  Meeting meeting(TransportKind::kAuto, TransportKind::kAuto);
  TransportOffer offer;
  EXPECT_EQ(meeting.r().OnOffer(offer, meeting.r_channel()).code(), StatusCode::kDataLoss) << "kind 0";
  offer.kind = 4;
  EXPECT_EQ(meeting.r().OnOffer(offer, meeting.r_channel()).code(), StatusCode::kDataLoss);
  offer.kind = 1;
  offer.size = kMaxCarrierBytes + 1;
  EXPECT_EQ(meeting.r().OnOffer(offer, meeting.r_channel()).code(), StatusCode::kDataLoss);
  TransportReady ready;
  ready.kind = 1;
  EXPECT_EQ(meeting.r().OnReady(ready).code(), StatusCode::kDataLoss) << "nothing was offered";
  TransportAnswer answer;
  answer.kind = 1;
  EXPECT_EQ(meeting.s().OnAnswer(answer).code(), StatusCode::kDataLoss) << "nothing was offered";
  answer.size = kMaxCarrierBytes + 1;
  EXPECT_EQ(meeting.s().OnAnswer(answer).code(), StatusCode::kDataLoss);
}

TEST(Negotiation, StrangersAtTheUnixSocketGetNothingAndHarmNobody) {
  Meeting meeting(TransportKind::kShm, TransportKind::kAuto);
  meeting.StepS();  // offers
  meeting.StepR();  // listens and answers
  ByteChannel::Frame frame;
  ASSERT_TRUE(meeting.s_channel().ReadFrame(frame).ok());
  const auto answer = frame.as<TransportAnswer>();
  const std::string name(reinterpret_cast<const char*>(answer.bytes), answer.size);
  std::list<ByteChannel> strangers;
  for (int i = 0; i < 12; ++i) {  // more than are let wait
    strangers.push_back({DialUnix(name).value(), "the R-worker"});
    AuthKey wrong;
    wrong.fill(8);
    ClientHandshake handshake(wrong, Purpose::kShared, 7, "the R-worker");
    ASSERT_TRUE(strangers.back().Write(handshake.hello()).ok());
    meeting.StepR();
    Reply reply;
    ASSERT_TRUE(strangers.back().Read(reply).ok());
    if (i % 2 == 0) continue;  // silent from here on
    ASSERT_TRUE(strangers.back().Write(handshake.OnChallenge(reply).value()).ok());
    meeting.StepR();
    EXPECT_EQ(strangers.back().Read(reply).code(), StatusCode::kUnavailable) << "dropped without an answer";
  }
  EXPECT_TRUE(meeting.s().OnAnswer(answer).ok());
  meeting.Run();
  meeting.ExpectAgreed(TransportKind::kShm);
}

}  // namespace
}  // namespace fastdecode
