// Bytes from outside, wherever they arrive before rows flow, and in shared memory afterwards:
// no crash, no hang, no memory beyond what was agreed.
//
// The first byte of an input picks the door, the rest comes in through it:
//   0  a connection to an R-worker's port that proves nothing
//   1  one that has proven the secret: frames instead of SessionOpen
//   2  an R-worker's control connection after its grant: frames
//   3  an S-worker's control connection after a grant: frames
//   4  an S-worker's opening: what an R-worker answers
//   5  shared memory, written by the peer
//   6  the peer's half of the verbs handshake
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>

#include "common/base/logging.h"
#include "common/transport/negotiation.h"
#include "common/transport/shm/shm_endpoint.h"
#include "common/transport/verbs/verbs_wire.h"
#include "common/wire/handshake.h"
#include "rworker/pending_connection.h"
#include "rworker/session_plan.h"

namespace fastdecode {
namespace {

constexpr int64_t kMemoryLimit = int64_t{64} << 20;

using Input = std::span<const uint8_t>;

Input Take(Input* input, size_t size) {
  const Input taken = input->first(std::min(size, input->size()));
  *input = input->subspan(taken.size());
  return taken;
}

struct Line {
  Line() {
    int sockets[2];
    CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, sockets), 0);
    ours = Fd(sockets[0]);
    theirs = Fd(sockets[1]);
  }
  void Write(const void* bytes, size_t size) { (void)send(theirs.get(), bytes, size, MSG_NOSIGNAL | MSG_DONTWAIT); }
  void Write(Input bytes) { Write(bytes.data(), bytes.size()); }
  Fd ours, theirs;
};

AuthKey Key() {
  AuthKey key;
  key.fill(7);
  return key;
}

EndpointOptions Options() {
  EndpointOptions options;
  options.lanes = {LaneOptions{4096, 3, 3}, LaneOptions{8192, 2, 2}};
  options.incarnation = 5;
  options.peer = "peer";
  return options;
}

CarrierContext Context() {
  CarrierContext context;
  context.endpoint = Options();
  context.session_key = Key();
  context.allocate = AllocatePageableSlots;
  context.clock = &SteadyClock::Get();
  return context;
}

const Carriers& TcpAndShm() {
  static const Carriers carriers{TransportSettings()};
  return carriers;
}

// Frames whose types and payloads the input chooses; one in eight is sent as raw bytes.
void WriteFrames(Line& line, Input input) {
  for (int frames = 0; frames < 6 && !input.empty(); ++frames) {
    const uint8_t choice = Take(&input, 1)[0];
    if (choice >= 224) {
      line.Write(Take(&input, choice - 224));
      continue;
    }
    FrameHeader header;
    header.type = choice % 10;
    header.payload_bytes = static_cast<uint32_t>(FramePayloadBytes(header.type));
    std::vector<uint8_t> payload(header.payload_bytes);
    const Input bytes = Take(&input, payload.size());
    std::copy(bytes.begin(), bytes.end(), payload.begin());
    line.Write(&header, sizeof(header));
    line.Write(payload);
  }
}

const AuthKey* SecretKey(const Hello&) {
  static const AuthKey key = Key();
  return &key;
}

void CheckPlan(const SessionOpen& open) {
  const Result<rworker::SessionPlan> plan = rworker::PlanSession(open, kMemoryLimit);
  if (plan.ok()) CHECK_LE(EndpointMemoryBytes(plan->endpoint), static_cast<uint64_t>(kMemoryLimit));
}

void Unproven(Input input) {
  Line line;
  rworker::PendingConnection connection(std::move(line.ours), "peer", Key(), 0);
  line.Write(input);
  const auto state = connection.Advance(SecretKey);
  CHECK(state <= rworker::PendingConnection::State::kProof || state == rworker::PendingConnection::State::kRefused)
      << "a MAC was guessed";
}

void Proven(Input input) {
  Line line;
  rworker::PendingConnection connection(std::move(line.ours), "peer", Key(), 0);
  ClientHandshake client(Key(), Purpose::kControl, 0, "rworker");
  line.Write(&client.hello(), sizeof(Hello));
  (void)connection.Advance(SecretKey);
  Reply challenge;
  CHECK_EQ(recv(line.theirs.get(), &challenge, sizeof(challenge), MSG_DONTWAIT), ssize_t{sizeof(challenge)});
  const Proof proof = client.OnChallenge(challenge).value();
  line.Write(&proof, sizeof(proof));
  WriteFrames(line, input);
  if (connection.Advance(SecretKey) == rworker::PendingConnection::State::kWantsSession) CheckPlan(connection.open());
}

void RWorkersNegotiation(Input input) {
  Line line;
  ByteChannel channel(std::move(line.ours), "S-worker");
  AcceptNegotiation negotiation(TcpAndShm(), Context());
  WriteFrames(line, input);
  ByteChannel::Frame frame;
  while (channel.ReadFrame(frame).ok()) {
    Status status;
    if (frame.type == FrameType::kTransportOffer) {
      status = negotiation.OnOffer(frame.as<TransportOffer>(), channel);
    } else if (frame.type == FrameType::kTransportReady) {
      status = negotiation.OnReady(frame.as<TransportReady>());
    } else if (frame.type == FrameType::kSessionOpen) {
      CheckPlan(frame.as<SessionOpen>());
    }
    if (!status.ok()) return;
    CHECK(!negotiation.Advance(channel).ok()) << "no stream came";
  }
}

void SWorkersNegotiation(Input input) {
  Line line;
  ByteChannel channel(std::move(line.ours), "rworker");
  DialNegotiation negotiation(TcpAndShm(), Context());
  if (negotiation.Advance(channel).ok()) return;
  WriteFrames(line, input);
  ByteChannel::Frame frame;
  while (channel.ReadFrame(frame).ok()) {
    if (frame.type == FrameType::kTransportAnswer && !negotiation.OnAnswer(frame.as<TransportAnswer>()).ok()) return;
    const Status status = negotiation.Advance(channel).status();
    CHECK(!status.ok()) << "nobody is there";
    if (status.code() != StatusCode::kWouldBlock) return;
  }
}

void SWorkersOpening(Input input) {
  ClientHandshake client(Key(), Purpose::kControl, 0, "rworker");
  for (int i = 0; i < 2; ++i) {
    Reply reply;
    const Input bytes = Take(&input, sizeof(reply));
    if (bytes.size() < sizeof(reply)) return;
    std::memcpy(static_cast<void*>(&reply), bytes.data(), sizeof(reply));
    if (i == 0 && !client.OnChallenge(reply).ok()) return;
    if (i == 1) CHECK(!client.OnVerdict(reply).ok()) << "a MAC was guessed";
  }
}

void SharedMemory(Input input) {
  static const ShmLayout layout = MakeShmLayout(Options(), Options());
  ShmMemory memory = ShmMemory::Create(layout.bytes).value();
  ShmMemory theirs = ShmMemory::Adopt(Fd(dup(memory.descriptor())), layout.bytes).value();
  Line line;
  auto endpoint = ShmEndpoint::Create(Options(), layout, ShmSide::kDialer, std::move(memory), std::move(line.ours), 0);
  MessageHeader header;
  header.type = static_cast<uint16_t>(MessageType::kORows);
  header.incarnation = 5;
  for (const ShmLaneLayout& lane : layout.lanes[1]) {  // valid headers, to be spoiled
    for (int slot = 0; slot < lane.slots; ++slot) {
      std::memcpy(theirs.data() + lane.slots_offset + lane.slot_bytes * static_cast<size_t>(slot), &header,
                  sizeof(header));
    }
  }
  for (int round = 0; round < 8 && !input.empty(); ++round) {
    const Input where = Take(&input, 2);
    const Input what = Take(&input, 8);
    // Words and headers lie in the first pages; a stroke of eight bytes at a multiple of four.
    const size_t at = (where[0] | (where.size() > 1 ? size_t{where[1]} << 8 : 0)) * 4 % (layout.bytes - 8);
    std::copy(what.begin(), what.end(), reinterpret_cast<uint8_t*>(theirs.data()) + at);
    if (Result<SendSlot> slot = endpoint->Acquire(Lane::kDecode); slot.ok()) {
      *slot->header() = header;
      (void)endpoint->Post(*slot);
    }
    const Result<RecvSlot> got = endpoint->Poll();
    if (got.ok()) {
      CHECK_EQ(got->bytes.size(), sizeof(MessageHeader) + got->header().payload_bytes);
      CHECK_LE(got->bytes.size(), 8192U);
      if (round % 2 == 0) endpoint->Release(*got);
    }
    (void)endpoint->PrepareWait();
  }
}

void VerbsHalf(Input input) { (void)ParseVerbsHello(std::as_bytes(input), Options()); }

}  // namespace
}  // namespace fastdecode

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace fastdecode;  // NOLINT: the entry has no other place
  static const bool ready = InitCrypto().ok();
  if (!ready || size == 0) return 0;
  constexpr void (*kDoors[])(Input) = {
      Unproven, Proven, RWorkersNegotiation, SWorkersNegotiation, SWorkersOpening, SharedMemory, VerbsHalf};
  kDoors[data[0] % std::size(kDoors)](Input(data + 1, size - 1));
  return 0;
}
