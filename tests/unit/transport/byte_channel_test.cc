#include "common/transport/tcp/byte_channel.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

namespace fastdecode {
namespace {

using testing::HasSubstr;

class ByteChannelTest : public testing::Test {
 protected:
  void SetUp() override {
    int pair[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair), 0);
    channel_ = ByteChannel(Fd(pair[0]), "peer X");
    other_ = Fd(pair[1]);
  }
  void Send(const void* bytes, size_t size) { ASSERT_EQ(write(other_.get(), bytes, size), static_cast<ssize_t>(size)); }
  void SendFrame(FrameHeader header, size_t payload) {
    Send(&header, sizeof(header));
    std::string bytes(payload, 'p');
    Send(bytes.data(), bytes.size());
  }

  ByteChannel channel_;
  Fd other_;
};

FrameHeader GoodbyeHeader() {
  FrameHeader header;
  header.type = static_cast<uint16_t>(FrameType::kGoodbye);
  header.payload_bytes = sizeof(Goodbye);
  return header;
}

TEST_F(ByteChannelTest, ReadsNothingBeyondWhatIsAskedFor) {
  Hello hello;
  hello.incarnation = 9;
  Send(&hello, sizeof(hello));
  Send("rest", 4);
  Hello read;
  ASSERT_TRUE(channel_.Read(read).ok());
  EXPECT_EQ(read.incarnation, 9U);
  Fd socket = channel_.TakeSocket();
  char rest[8];
  EXPECT_EQ(recv(socket.get(), rest, sizeof(rest), 0), 4) << "the stream's next owner needs these";
}

TEST_F(ByteChannelTest, AssemblesAFrameFromSingleBytes) {
  ByteChannel::Frame frame;
  Goodbye goodbye;
  SetText(goodbye.text, "so long");
  FrameHeader header = GoodbyeHeader();
  std::string bytes(reinterpret_cast<const char*>(&header), sizeof(header));
  bytes.append(reinterpret_cast<const char*>(&goodbye), sizeof(goodbye));
  for (char byte : bytes) {
    ASSERT_EQ(channel_.ReadFrame(frame).code(), StatusCode::kWouldBlock);
    Send(&byte, 1);
  }
  ASSERT_TRUE(channel_.ReadFrame(frame).ok());
  EXPECT_EQ(frame.type, FrameType::kGoodbye);
  EXPECT_EQ(GetText(frame.as<Goodbye>().text), "so long");
}

TEST_F(ByteChannelTest, FramesAreCheckedBeforeTheirPayloadIsAwaited) {
  FrameHeader huge = GoodbyeHeader();
  huge.payload_bytes = 0xffffffff;
  SendFrame(huge, 0);
  ByteChannel::Frame frame;
  Status status = channel_.ReadFrame(frame);
  EXPECT_EQ(status.code(), StatusCode::kDataLoss);
  EXPECT_THAT(status.message(),
              HasSubstr("peer X sends a control frame of type 5 with 4294967295 bytes, expected 256"));
}

TEST_F(ByteChannelTest, UnknownTypesMagicsAndVersionsAreRefused) {
  for (int i = 0; i < 3; ++i) {
    SetUp();
    FrameHeader header = GoodbyeHeader();
    if (i == 0) header.type = 9;
    if (i == 1) header.magic = 0;
    if (i == 2) header.version = kProtocolVersion + 1;
    SendFrame(header, 0);
    ByteChannel::Frame frame;
    const Status status = channel_.ReadFrame(frame);
    EXPECT_EQ(status.code(), StatusCode::kDataLoss) << i;
    EXPECT_THAT(status.message(), HasSubstr(i == 0 ? "of the unknown type 9" : "no control frame")) << i;
  }
}

TEST_F(ByteChannelTest, TheEndIsToldApartFromTheMiddle) {
  Send("12345", 5);
  other_.Reset();
  Hello hello;
  Status status = channel_.Read(hello);
  EXPECT_EQ(status.code(), StatusCode::kDataLoss);
  EXPECT_THAT(status.message(), HasSubstr("5 of 48 bytes"));
  SetUp();
  other_.Reset();
  EXPECT_EQ(channel_.Read(hello).code(), StatusCode::kUnavailable);
}

TEST_F(ByteChannelTest, APeerThatDoesNotReadFillsABoundedBufferOnly) {
  Refusal refusal;
  Status status;
  int frames = 0;
  while ((status = channel_.WriteFrame(refusal)).ok()) ASSERT_LT(++frames, 10'000);
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_TRUE(channel_.wants_write());
  std::vector<char> sink(1 << 20);
  while (channel_.wants_write()) {
    ASSERT_GT(read(other_.get(), sink.data(), sink.size()), 0);
    ASSERT_TRUE(channel_.Flush().ok());
  }
}

}  // namespace
}  // namespace fastdecode
