// What the S-worker believes of an R-worker's answers: one that says what it was not asked is lost, and nothing else.
#include "sworker/attention/remote_attention.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <cstring>

#include "common/transport/shm/shm_endpoint.h"

namespace fastdecode {
namespace {

using testing::HasSubstr;
using Kind = AttentionEvent::Kind;

SessionOptions Session() {
  SessionOptions options;
  options.shape = {1, 2, 1, 8};
  options.max_context = 64;
  options.max_sequences = options.max_rows = 4;
  options.bulk_slot_bytes = 8192;
  return options;
}

class RemoteAttentionTest : public testing::Test {
 protected:
  RemoteAttentionTest() : attention_(Session(), 1) {
    EndpointOptions options;
    options.lanes = SessionLanes(Session());
    options.incarnation = 7;
    options.peer = "rworker X";
    const EndpointOptions mirrored = MirrorOptions(options);
    const ShmLayout layout = MakeShmLayout(options, mirrored);
    ShmMemory s = ShmMemory::Create(layout.bytes).value();
    ShmMemory r = ShmMemory::Adopt(Fd(dup(s.descriptor())), layout.bytes).value();
    int sockets[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, sockets), 0);
    attention_.Join(0, ShmEndpoint::Create(options, layout, ShmSide::kDialer, std::move(s), Fd(sockets[0]), 0));
    rworker_ = ShmEndpoint::Create(mirrored, layout, ShmSide::kAccepter, std::move(r), Fd(sockets[1]), 0);
  }

  void Answer(Lane lane, const MessageHeader& header, const std::string& payload = {}) {
    SendSlot slot = rworker_->Acquire(lane).value();
    *slot.header() = header;
    if (!payload.empty()) std::memcpy(slot.payload(), payload.data(), payload.size());
    ASSERT_TRUE(rworker_->Post(slot).ok());
  }
  void Answer(MessageType type, SequenceId sequence) {
    MessageHeader header;
    header.type = static_cast<uint16_t>(type);
    header.sequence = sequence;
    Answer(Lane::kBulk, header);
  }
  // The one event that there is.
  AttentionEvent Event() {
    std::optional<AttentionEvent> event = attention_.Poll();
    EXPECT_TRUE(event.has_value());
    EXPECT_FALSE(attention_.Poll().has_value());
    return event.value_or(AttentionEvent());
  }
  void ExpectLost(const std::string& reason) {
    const AttentionEvent event = Event();
    ASSERT_EQ(event.kind, Kind::kLost);
    EXPECT_THAT(event.reason.message(), HasSubstr("rworker X"));
    EXPECT_THAT(event.reason.message(), HasSubstr(reason));
    EXPECT_FALSE(attention_.joined(0));
  }
  // A pass of sequences 1 and 2 at tokens 4 and 9, whose only layer is with the R-worker.
  void SubmitRows() {
    const StepRow rows[] = {{1, 4, 0}, {2, 9, 0}};
    const RowSlice slices[] = {{0, 0, 2}};
    ASSERT_TRUE(attention_.BeginPass(0, 1, rows, slices).ok());
    ASSERT_TRUE(attention_.AcquireQkv(0).ok());
    ASSERT_TRUE(attention_.SubmitQkv(0, 0).ok());
  }
  static MessageHeader Rows(uint64_t context_tokens) {
    MessageHeader header;
    header.type = static_cast<uint16_t>(MessageType::kORows);
    header.step = 1;
    header.rows = 2;
    header.payload_bytes = 2 * 2 * 8 * 2;
    header.context_tokens = context_tokens;
    return header;
  }

  RemoteAttention attention_;
  std::unique_ptr<Endpoint> rworker_;
};

TEST_F(RemoteAttentionTest, AnswersThatAreDueAreEvents) {
  ASSERT_TRUE(attention_.FinishPrefill(0, 7, 3).ok());
  attention_.Free(0, 9);
  EXPECT_FALSE(attention_.Poll().has_value());
  Answer(MessageType::kPrefillAck, 7);
  AttentionEvent event = Event();
  EXPECT_EQ(event.kind, Kind::kPrefillDone);
  EXPECT_EQ(event.sequence, 7U);
  Answer(MessageType::kFreed, 9);
  event = Event();
  EXPECT_EQ(event.kind, Kind::kFreed);
  EXPECT_EQ(event.sequence, 9U);
}

TEST_F(RemoteAttentionTest, AnAnswerThatIsNotDueIsNotBelieved) {
  ASSERT_TRUE(attention_.FinishPrefill(0, 7, 3).ok());
  Answer(MessageType::kPrefillAck, 7);
  EXPECT_EQ(Event().kind, Kind::kPrefillDone);
  Answer(MessageType::kPrefillAck, 7);
  ExpectLost("type 17 of sequence 7, which is not the answer that is due");
}

TEST_F(RemoteAttentionTest, NorIsOneOfAnotherSequence) {
  attention_.Free(0, 9);
  EXPECT_FALSE(attention_.Poll().has_value());
  Answer(MessageType::kFreed, 8);
  ExpectLost("type 18 of sequence 8");
}

TEST_F(RemoteAttentionTest, NorOneOfAnotherKind) {
  ASSERT_TRUE(attention_.FinishPrefill(0, 7, 3).ok());
  Answer(MessageType::kFreed, 7);
  ExpectLost("type 18 of sequence 7");
}

TEST_F(RemoteAttentionTest, RowsOfTheContextThatWasAskedForAreTaken) {
  SubmitRows();
  Answer(Lane::kDecode, Rows(5 + 10));
  EXPECT_EQ(Event().kind, Kind::kAttended);
  EXPECT_EQ(attention_.workload()[0], 15);
  attention_.Idle(1);
  EXPECT_EQ(attention_.workload()[0], 15) << "the last pass counts while its mini-batch goes on";
  attention_.Idle(0);
  EXPECT_EQ(attention_.workload()[0], 0);
}

TEST_F(RemoteAttentionTest, AnotherContextIsNotBelieved) {
  SubmitRows();
  Answer(Lane::kDecode, Rows(uint64_t{1} << 63));
  const std::optional<AttentionEvent> attended = attention_.Poll();  // of the pass that lost its only slice
  ASSERT_TRUE(attended.has_value());
  EXPECT_EQ(attended->kind, Kind::kAttended);
  EXPECT_TRUE(attended->o[0].lost);
  ExpectLost("9223372036854775808 tokens");
  EXPECT_EQ(attention_.workload()[0], 0);
}

TEST_F(RemoteAttentionTest, AFaultsTextIsOneLineOfBoundedLength) {
  MessageHeader header;
  header.type = static_cast<uint16_t>(MessageType::kFault);
  std::string text = "too few blocks\nE1130 forged.cc:1] all is lost";
  text.resize(8000, 'x');
  header.payload_bytes = static_cast<uint32_t>(text.size());
  Answer(Lane::kBulk, header, text);
  const AttentionEvent event = Event();
  EXPECT_THAT(event.reason.message(), HasSubstr("rworker X ended the session: too few blocks?E1130 forged"));
  EXPECT_LT(event.reason.message().size(), 1100U);
}

}  // namespace
}  // namespace fastdecode
