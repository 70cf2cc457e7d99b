#include "tests/integration/rworker/session_client.h"

#include <poll.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "common/base/clock.h"
#include "common/base/logging.h"

namespace fastdecode {
namespace {

enum Which : uint64_t { kQ = 0, kK = 1, kV = 2 };

// A finite f16 between 1/16 and 2 in magnitude, by its bits.
uint16_t Element(uint64_t sequence, uint64_t layer, uint64_t position, Which which, uint64_t index) {
  uint64_t x = (sequence * 1'000'003 + layer) * 1'000'033 + position * 3 + which;
  x = (x * 1'000'037 + index) * 0x9e3779b97f4a7c15ULL;
  x ^= x >> 29;
  x *= 0xbf58476d1ce4e5b9ULL;
  x ^= x >> 32;
  uint64_t exponent = 11 + (x >> 11) % 5;
  return static_cast<uint16_t>((x & 1) << 15 | exponent << 10 | ((x >> 1) & 0x3ff));
}

double FromHalf(uint16_t bits) {
  int exponent = (bits >> 10) & 0x1f;
  double mantissa = bits & 0x3ff;
  CHECK_NE(exponent, 31) << "not finite";
  double value = exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
  return (bits & 0x8000) != 0 ? -value : value;
}

void Fill(uint16_t* out, int64_t width, uint64_t sequence, uint64_t layer, uint64_t position, Which which) {
  for (int64_t i = 0; i < width; ++i) out[i] = Element(sequence, layer, position, which, static_cast<uint64_t>(i));
}

}  // namespace

SendSlot SessionClient::Acquire(Lane lane) {
  for (int64_t deadline = NowNs() + 10'000'000'000; NowNs() < deadline;) {
    Result<SendSlot> slot = endpoint_.Acquire(lane);
    if (slot.ok()) {
      *slot->header() = MessageHeader();
      return *slot;
    }
    CHECK(slot.status().code() == StatusCode::kWouldBlock) << slot.status().ToString();
    CHECK(endpoint_.Poll().status().code() == StatusCode::kWouldBlock) << "an answer that nobody awaits";
  }
  LOG(FATAL) << "no send slot became free";
  return {};
}

Result<RecvSlot> SessionClient::Receive() {
  for (int64_t deadline = NowNs() + 10'000'000'000; NowNs() < deadline;) {
    Result<RecvSlot> slot = endpoint_.Poll();
    if (slot.ok() || slot.status().code() != StatusCode::kWouldBlock) return slot;
    if (!endpoint_.PrepareWait()) continue;
    pollfd fd{endpoint_.wait_fd(), POLLIN, 0};
    poll(&fd, 1, 100);
  }
  return Status(StatusCode::kDeadlineExceeded, "no message within 10 s");
}

void SessionClient::Send(Lane lane, MessageHeader header) {
  SendSlot slot = Acquire(lane);
  *slot.header() = header;
  std::memset(slot.payload(), 0, header.payload_bytes);
  (void)endpoint_.Post(slot);
}

void SessionClient::Prefill(uint64_t sequence, uint32_t tokens) {
  int64_t width = shape_.kv_width();
  size_t row_bytes = static_cast<size_t>(width) * 4;
  for (uint16_t layer = 0; layer < shape_.num_layers; ++layer) {
    for (uint32_t position = 0; position < tokens;) {
      SendSlot slot = Acquire(Lane::kBulk);
      auto room = static_cast<uint32_t>((slot.bytes.size() - sizeof(MessageHeader)) / row_bytes);
      uint32_t rows = std::min(room, tokens - position);
      MessageHeader& header = *slot.header();
      header.type = static_cast<uint16_t>(MessageType::kKvAppend);
      header.sequence = sequence;
      header.layer = layer;
      header.position = position;
      header.rows = rows;
      header.payload_bytes = static_cast<uint32_t>(rows * row_bytes);
      auto* out = reinterpret_cast<uint16_t*>(slot.payload());
      for (uint32_t row = 0; row < rows; ++row, out += 2 * width) {
        Fill(out, width, sequence, layer, position + row, kK);
        Fill(out + width, width, sequence, layer, position + row, kV);
      }
      CHECK(endpoint_.Post(slot).ok());
      position += rows;
    }
  }
  MessageHeader done;
  done.type = static_cast<uint16_t>(MessageType::kPrefillDone);
  done.sequence = sequence;
  done.position = tokens;
  Send(Lane::kBulk, done);
  Result<RecvSlot> ack = Receive();
  CHECK(ack.ok()) << ack.status().ToString();
  CHECK_EQ(ack->header().type, static_cast<uint16_t>(MessageType::kPrefillAck))
      << std::string(reinterpret_cast<const char*>(ack->payload()), ack->header().payload_bytes);
  CHECK_EQ(ack->header().sequence, sequence);
  endpoint_.Release(*ack);
  tokens_[sequence] = tokens;
}

void SessionClient::BeginStep(uint16_t mini_batch, const std::vector<uint64_t>& sequences) {
  Step_& step = steps_[mini_batch];
  step.sequences.assign(sequences.begin(), sequences.end());
  ++step.number;
  SendSlot slot = Acquire(Lane::kDecode);
  MessageHeader& header = *slot.header();
  header.type = static_cast<uint16_t>(MessageType::kStepBegin);
  header.mini_batch = mini_batch;
  header.step = step.number;
  header.rows = static_cast<uint32_t>(sequences.size());
  header.payload_bytes = static_cast<uint32_t>(sequences.size() * sizeof(StepRow));
  auto* rows = reinterpret_cast<StepRow*>(slot.payload());
  for (uint64_t sequence : sequences) *rows++ = {sequence, tokens_.at(sequence), 0};
  CHECK(endpoint_.Post(slot).ok());
}

void SessionClient::SendLayer(uint16_t mini_batch, uint16_t layer) {
  const Step_& step = steps_.at(mini_batch);
  SendSlot slot = Acquire(Lane::kDecode);
  MessageHeader& header = *slot.header();
  header.type = static_cast<uint16_t>(MessageType::kQkvRows);
  header.mini_batch = mini_batch;
  header.layer = layer;
  header.step = step.number;
  header.rows = static_cast<uint32_t>(step.sequences.size());
  header.payload_bytes = static_cast<uint32_t>(static_cast<int64_t>(header.rows) * shape_.qkv_width() * 2);
  auto* out = reinterpret_cast<uint16_t*>(slot.payload());
  for (uint64_t sequence : step.sequences) {
    uint32_t position = tokens_.at(sequence);
    Fill(out, shape_.q_width(), sequence, layer, position, kQ);
    Fill(out + shape_.q_width(), shape_.kv_width(), sequence, layer, position, kK);
    Fill(out + shape_.q_width() + shape_.kv_width(), shape_.kv_width(), sequence, layer, position, kV);
    out += shape_.qkv_width();
  }
  CHECK(endpoint_.Post(slot).ok());
}

double SessionClient::ReceiveLayer(uint16_t mini_batch, uint16_t layer) {
  const Step_& step = steps_.at(mini_batch);
  Result<RecvSlot> slot = Receive();
  CHECK(slot.ok()) << slot.status().ToString();
  const MessageHeader& header = slot->header();
  CHECK_EQ(header.type, static_cast<uint16_t>(MessageType::kORows));
  CHECK(slot->lane == Lane::kDecode);
  CHECK_EQ(header.mini_batch, mini_batch);
  CHECK_EQ(header.layer, layer);
  CHECK_EQ(header.step, step.number);
  CHECK_EQ(header.rows, step.sequences.size());
  CHECK_EQ(header.payload_bytes, header.rows * static_cast<uint64_t>(shape_.q_width()) * 2);
  last_rows_ = header;
  const auto* o = reinterpret_cast<const uint16_t*>(slot->payload());
  double worst = 0;
  for (uint64_t sequence : step.sequences) {
    if (check_) worst = std::max(worst, CheckRow(o, sequence, layer, tokens_.at(sequence)));
    o += shape_.q_width();
  }
  endpoint_.Release(*slot);
  return worst;
}

void SessionClient::EndStep(uint16_t mini_batch) {
  for (uint64_t sequence : steps_.at(mini_batch).sequences) ++tokens_.at(sequence);
}

double SessionClient::Step(uint16_t mini_batch, const std::vector<uint64_t>& sequences) {
  BeginStep(mini_batch, sequences);
  double worst = 0;
  for (uint16_t layer = 0; layer < shape_.num_layers; ++layer) {
    SendLayer(mini_batch, layer);
    worst = std::max(worst, ReceiveLayer(mini_batch, layer));
  }
  EndStep(mini_batch);
  return worst;
}

void SessionClient::Free(uint64_t sequence) {
  MessageHeader header;
  header.type = static_cast<uint16_t>(MessageType::kFree);
  header.sequence = sequence;
  Send(Lane::kBulk, header);
  Result<RecvSlot> freed = Receive();
  CHECK(freed.ok()) << freed.status().ToString();
  CHECK_EQ(freed->header().type, static_cast<uint16_t>(MessageType::kFreed));
  CHECK_EQ(freed->header().sequence, sequence);
  endpoint_.Release(*freed);
  tokens_.erase(sequence);
}

// softmax(q k^T / sqrt(head_dim)) v over positions 0 .. position, in double.
double SessionClient::CheckRow(const uint16_t* o, uint64_t sequence, uint16_t layer, uint32_t position) const {
  int64_t dim = shape_.head_dim;
  int64_t group = shape_.num_heads / shape_.num_kv_heads;
  auto element = [&](uint64_t at, Which which, int64_t index) {
    return FromHalf(Element(sequence, layer, at, which, static_cast<uint64_t>(index)));
  };
  double worst = 0;
  for (int64_t head = 0; head < shape_.num_heads; ++head) {
    int64_t kv_head = head / group;
    std::vector<double> scores(position + 1);
    for (uint32_t at = 0; at <= position; ++at) {
      double dot = 0;
      for (int64_t d = 0; d < dim; ++d) {
        dot += element(position, kQ, head * dim + d) * element(at, kK, kv_head * dim + d);
      }
      scores[at] = dot / std::sqrt(static_cast<double>(dim));
    }
    double maximum = *std::max_element(scores.begin(), scores.end());
    double sum = 0;
    for (double& score : scores) sum += score = std::exp(score - maximum);
    for (int64_t d = 0; d < dim; ++d) {
      double expected = 0;
      for (uint32_t at = 0; at <= position; ++at) expected += scores[at] / sum * element(at, kV, kv_head * dim + d);
      worst = std::max(worst, std::abs(expected - FromHalf(o[head * dim + d])));
    }
  }
  return worst;
}

}  // namespace fastdecode
