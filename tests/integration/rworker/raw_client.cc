#include "tests/integration/rworker/raw_client.h"

#include <poll.h>
#include <sys/socket.h>

#include "common/base/clock.h"
#include "common/base/logging.h"
#include "common/transport/tcp/socket.h"

namespace fastdecode {

SessionOpen OpenFrom(const SessionOptions& options) {
  SessionOpen open;
  open.num_layers = static_cast<uint32_t>(options.shape.num_layers);
  open.num_heads = static_cast<uint32_t>(options.shape.num_heads);
  open.num_kv_heads = static_cast<uint32_t>(options.shape.num_kv_heads);
  open.head_dim = static_cast<uint32_t>(options.shape.head_dim);
  open.block_tokens = static_cast<uint32_t>(options.block_tokens);
  open.max_context = static_cast<uint32_t>(options.max_context);
  open.max_sequences = static_cast<uint32_t>(options.max_sequences);
  open.max_rows = static_cast<uint32_t>(options.max_rows);
  open.mini_batches = static_cast<uint32_t>(options.mini_batches);
  open.heartbeat_ms = static_cast<uint32_t>(options.heartbeat_ms);
  open.peer_timeout_ms = static_cast<uint32_t>(options.peer_timeout_ms);
  open.kv_dtype = PackKvDtype(options.kv.keys, options.kv.values);
  auto lanes = SessionLanes(options);
  for (size_t i = 0; i < kNumLanes; ++i) {
    open.lanes[i] = {lanes[i].slot_bytes, static_cast<uint32_t>(lanes[i].send_slots),
                     static_cast<uint32_t>(lanes[i].recv_slots)};
  }
  SetText(open.name, options.name);
  return open;
}

RawClient::RawClient(const std::string& address) {
  auto addresses = ParseNumericAddress(ParseHostPort(address).value()).value();
  socket_ = DialTcp(addresses.front()).value();
  pollfd fd{socket_.get(), POLLOUT, 0};
  CHECK_EQ(poll(&fd, 1, 5000), 1);
  CHECK(ConnectResult(socket_.get(), address).ok());
  CHECK(TuneControl(socket_.get(), 5000).ok());
}

void RawClient::Write(const void* bytes, size_t size) {
  const auto* from = static_cast<const char*>(bytes);
  while (size > 0) {
    const ssize_t count = send(socket_.get(), from, size, MSG_NOSIGNAL);
    if (count < 0 && errno == EAGAIN) {
      pollfd fd{socket_.get(), POLLOUT, 0};
      if (poll(&fd, 1, 5000) == 1) continue;
    }
    // The peer may have refused and closed already: that is the test's to see by reading.
    if (count < 0) return;
    from += count;
    size -= static_cast<size_t>(count);
  }
}

bool RawClient::ReadBytes(void* bytes, size_t size, int patience_ms) {
  auto* out = static_cast<char*>(bytes);
  int64_t deadline = NowNs() + patience_ms * int64_t{1'000'000};
  while (size > 0) {
    pollfd fd{socket_.get(), POLLIN, 0};
    auto left = static_cast<int>((deadline - NowNs()) / 1'000'000);
    if (left < 0 || poll(&fd, 1, left) <= 0) return false;
    ssize_t count = recv(socket_.get(), out, size, MSG_DONTWAIT);
    if (count <= 0) return false;
    out += count;
    size -= static_cast<size_t>(count);
  }
  return true;
}

bool RawClient::PeerClosed(int patience_ms) {
  int64_t deadline = NowNs() + patience_ms * int64_t{1'000'000};
  while (NowNs() < deadline) {
    pollfd fd{socket_.get(), POLLIN, 0};
    poll(&fd, 1, 20);
    char bytes[1024];
    ssize_t count = recv(socket_.get(), bytes, sizeof(bytes), MSG_DONTWAIT);
    if (count == 0 || (count < 0 && errno != EAGAIN)) return true;
  }
  return false;
}

bool RawClient::OfferTcp() {
  TransportOffer offer;
  offer.kind = 1;
  WriteFrame(offer);
  TransportAnswer answer;
  return ReadFrame(answer) && answer.refusal == 0;
}

void RawClient::ReadyWithTcp() {
  TransportReady ready;
  ready.kind = 1;
  SetText(ready.why, "a test");
  WriteFrame(ready);
}

Status RawClient::Prove(const AuthKey& key, Purpose purpose, uint32_t incarnation) {
  ClientHandshake handshake(key, purpose, incarnation, "rworker");
  Write(handshake.hello());
  Reply reply;
  if (!Read(reply)) return Unavailable("no challenge");
  FD_ASSIGN_OR_RETURN(Proof proof, handshake.OnChallenge(reply));
  Write(proof);
  if (!Read(reply)) return Unavailable("no verdict");
  FD_RETURN_IF_ERROR(handshake.OnVerdict(reply));
  session_key_ = handshake.session_key();
  return OkStatus();
}

}  // namespace fastdecode
