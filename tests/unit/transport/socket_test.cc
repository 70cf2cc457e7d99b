#include "common/transport/tcp/socket.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>

namespace fastdecode {
namespace {

using testing::HasSubstr;

TEST(SocketAddress, NumericHostsNeedNoNameServer) {
  EXPECT_EQ(ToString(ParseNumericAddress({"127.0.0.1", 7200}).value().front()), "127.0.0.1:7200");
  EXPECT_EQ(ToString(ParseNumericAddress({"::1", 7200}).value().front()), "[::1]:7200");
  EXPECT_EQ(ParseNumericAddress({"localhost", 7200}).status().code(), StatusCode::kNotFound);
  EXPECT_TRUE(ResolveAddress({"localhost", 7200}).ok());
}

void ExpectConnects(const char* host) {
  Result<Fd> listener = ListenTcp({host, 0});
  ASSERT_TRUE(listener.ok()) << listener.status().ToString();
  Fd client = DialTcp(LocalAddress(listener->get()).value()).value();
  pollfd fd{listener->get(), POLLIN, 0};
  ASSERT_EQ(poll(&fd, 1, 5000), 1);
  Result<Accepted> accepted = AcceptTcp(listener->get());
  ASSERT_TRUE(accepted.ok());
  EXPECT_EQ(ToString(accepted->peer), ToString(LocalAddress(client.get()).value()));
  EXPECT_TRUE(ConnectResult(client.get(), "x").ok());
  EXPECT_EQ(AcceptTcp(listener->get()).status().code(), StatusCode::kWouldBlock);
}

TEST(Socket, ConnectsOverBothFamilies) {
  ExpectConnects("127.0.0.1");
  if (!ListenTcp({"::1", 0}).ok()) GTEST_SKIP() << "this host has no IPv6";
  ExpectConnects("::1");
}

TEST(Socket, FailuresSayWhatAndWhere) {
  Fd listener = ListenTcp({"127.0.0.1", 0}).value();
  SocketAddress address = LocalAddress(listener.get()).value();
  uint16_t port = ntohs(reinterpret_cast<const sockaddr_in&>(address.storage).sin_port);
  Status taken = ListenTcp({"127.0.0.1", port}).status();
  EXPECT_THAT(taken.message(), HasSubstr("cannot listen on " + ToString(address) + ": the port is in use"));
  listener.Reset();
  Result<Fd> client = DialTcp(address);
  Status refused = client.status();
  if (client.ok()) {
    pollfd fd{client->get(), POLLOUT, 0};
    ASSERT_EQ(poll(&fd, 1, 5000), 1);
    refused = ConnectResult(client->get(), "rworker X");
  }
  EXPECT_EQ(refused.code(), StatusCode::kUnavailable);
  EXPECT_THAT(refused.message(), HasSubstr("nothing listens there"));
}

TEST(Socket, TunedForLatencyAndDeadPeers) {
  Fd socket(::socket(AF_INET, SOCK_STREAM, 0));
  ASSERT_TRUE(TuneControl(socket.get(), 3000).ok());
  auto get = [&](int level, int name) {
    int value = 0;
    socklen_t length = sizeof(value);
    EXPECT_EQ(getsockopt(socket.get(), level, name, &value, &length), 0);
    return value;
  };
  EXPECT_EQ(get(IPPROTO_TCP, TCP_NODELAY), 1);
  EXPECT_EQ(get(IPPROTO_TCP, TCP_USER_TIMEOUT), 3000);
  EXPECT_EQ(get(SOL_SOCKET, SO_KEEPALIVE), 1);
  // A stream's reader may be busy for longer than any timeout.
  ASSERT_TRUE(TuneStream(socket.get()).ok());
  EXPECT_EQ(get(IPPROTO_TCP, TCP_NODELAY), 1);
  EXPECT_EQ(get(IPPROTO_TCP, TCP_USER_TIMEOUT), 0);
}

}  // namespace
}  // namespace fastdecode
