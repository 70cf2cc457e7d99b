#include "rworker/message_handler.h"

#include <algorithm>
#include <limits>

#include "common/base/logging.h"

namespace fastdecode::rworker {
namespace {

const char* TypeName(uint16_t type) {
  switch (static_cast<MessageType>(type)) {
    case MessageType::kStepBegin:
      return "StepBegin";
    case MessageType::kQkvRows:
      return "QkvRows";
    case MessageType::kKvAppend:
      return "KvAppend";
    case MessageType::kPrefillDone:
      return "PrefillDone";
    case MessageType::kFree:
      return "Free";
    default:
      return "unknown";
  }
}

Status CheckPayload(const MessageHeader& header, int64_t row_bytes) {
  if (header.dtype != kDtypeF16) {
    return DataLoss(std::string(TypeName(header.type)) + ": dtype " + std::to_string(header.dtype) + ", expected f16");
  }
  if (header.payload_bytes == header.rows * static_cast<uint64_t>(row_bytes)) return OkStatus();
  return DataLoss(std::string(TypeName(header.type)) + ": " + std::to_string(header.payload_bytes) + " bytes for " +
                  std::to_string(header.rows) + " rows of " + std::to_string(row_bytes));
}

// The answer's header: what the question was about.
MessageHeader& Answer(const RecvSlot& in, const SendSlot& out, MessageType type) {
  CHECK_GE(out.index, 0);
  MessageHeader& header = *out.header();
  header = in.header();
  header.type = static_cast<uint16_t>(type);
  header.payload_bytes = 0;
  return header;
}

uint32_t Saturate(int64_t ns) {
  return static_cast<uint32_t>(std::clamp<int64_t>(ns, 0, std::numeric_limits<uint32_t>::max()));
}

// One thread writes: no read-modify-write needed.
void Add(std::atomic<uint64_t>& counter, uint64_t value) {
  counter.store(counter.load(std::memory_order_relaxed) + value, std::memory_order_relaxed);
}

}  // namespace

MessageHandler::MessageHandler(AttentionService* service, SessionCounters* counters, const Clock& clock)
    : service_(*service),
      counters_(*counters),
      clock_(clock),
      workload_(service->limits().max_mini_batches, service->limits().max_rows) {
  PublishStats();
}

Result<bool> MessageHandler::NeedsReply(const RecvSlot& in) {
  auto type = static_cast<MessageType>(in.header().type);
  switch (type) {
    case MessageType::kStepBegin:
    case MessageType::kQkvRows:
      if (in.lane == Lane::kDecode) return type == MessageType::kQkvRows;
      break;
    case MessageType::kKvAppend:
    case MessageType::kPrefillDone:
    case MessageType::kFree:
      if (in.lane == Lane::kBulk) return type != MessageType::kKvAppend;
      break;
    default:
      break;
  }
  return DataLoss("a message of type " + std::to_string(in.header().type) + " (" + TypeName(in.header().type) +
                  ") on the " + (in.lane == Lane::kDecode ? "decode" : "bulk") + " lane");
}

Status MessageHandler::Handle(const RecvSlot& in, const SendSlot& out) {
  switch (static_cast<MessageType>(in.header().type)) {
    case MessageType::kStepBegin:
      return StepBegin(in);
    case MessageType::kQkvRows:
      return QkvRows(in, out);
    case MessageType::kKvAppend:
      return KvAppend(in);
    case MessageType::kPrefillDone:
      return PrefillDone(in, out);
    case MessageType::kFree:
      return Free(in, out);
    default:
      return Internal("a message that NeedsReply should have refused");
  }
}

Status MessageHandler::StepBegin(const RecvSlot& in) {
  const MessageHeader& header = in.header();
  FD_RETURN_IF_ERROR(CheckPayload(header, sizeof(StepRow)));
  std::span<const StepRow> rows(reinterpret_cast<const StepRow*>(in.payload()), header.rows);
  FD_RETURN_IF_ERROR(service_.BeginStep(header.mini_batch, header.step, rows));
  workload_.BeginStep(header.mini_batch, rows);
  Add(counters_.steps, 1);
  PublishStats();
  return OkStatus();
}

Status MessageHandler::QkvRows(const RecvSlot& in, const SendSlot& out) {
  const MessageHeader& header = in.header();
  FD_RETURN_IF_ERROR(CheckPayload(header, service_.shape().qkv_width() * 2));
  MessageHeader& answer = Answer(in, out, MessageType::kORows);
  int64_t queue_ns = clock_.NowNs() - in.arrived_ns;
  AttendInfo info;
  FD_RETURN_IF_ERROR(service_.Attend(header.mini_batch, header.step, header.layer,
                                     reinterpret_cast<const uint16_t*>(in.payload()), header.rows,
                                     reinterpret_cast<uint16_t*>(out.payload()), &info));
  answer.payload_bytes = static_cast<uint32_t>(header.rows * service_.shape().q_width() * 2);
  answer.compute_ns = Saturate(info.compute_ns);
  answer.queue_ns = Saturate(queue_ns);
  answer.context_tokens = static_cast<uint64_t>(info.context_tokens);
  Add(counters_.rows, header.rows);
  Add(counters_.compute_ns, static_cast<uint64_t>(info.compute_ns));
  PublishBeyondRange(service_.stats());
  return OkStatus();
}

Status MessageHandler::KvAppend(const RecvSlot& in) {
  const MessageHeader& header = in.header();
  FD_RETURN_IF_ERROR(CheckPayload(header, service_.shape().kv_width() * 4));
  FD_RETURN_IF_ERROR(service_.AppendPrefill(header.sequence, header.layer, header.position, header.rows,
                                            reinterpret_cast<const uint16_t*>(in.payload())));
  Add(counters_.kv_tokens_appended, header.rows);
  PublishStats();
  return OkStatus();
}

Status MessageHandler::PrefillDone(const RecvSlot& in, const SendSlot& out) {
  FD_RETURN_IF_ERROR(service_.FinishPrefill(in.header().sequence, in.header().position));
  Answer(in, out, MessageType::kPrefillAck);
  return OkStatus();
}

Status MessageHandler::Free(const RecvSlot& in, const SendSlot& out) {
  FD_RETURN_IF_ERROR(service_.Free(in.header().sequence));
  workload_.Free(in.header().sequence);
  PublishStats();
  Answer(in, out, MessageType::kFreed);
  return OkStatus();
}

void MessageHandler::PublishStats() {
  KvStats stats = service_.stats();
  auto set = [](std::atomic<uint64_t>& counter, uint64_t value) { counter.store(value, std::memory_order_relaxed); };
  set(counters_.free_blocks, static_cast<uint64_t>(stats.free_blocks));
  set(counters_.total_blocks, static_cast<uint64_t>(stats.total_blocks));
  set(counters_.sequences, static_cast<uint64_t>(stats.sequences));
  set(counters_.workload, workload_.now());
  set(counters_.peak_workload, workload_.peak());
  PublishBeyondRange(stats);
}

void MessageHandler::PublishBeyondRange(const KvStats& stats) {
  if (stats.beyond_range == 0) return;
  if (counters_.kv_beyond_range.load(std::memory_order_relaxed) == 0) {
    LOG(WARNING) << "K and V have elements beyond the range of the cache's format (" << stats.beyond_range
                 << " so far), stored as its largest value; further ones of this session are counted, not logged";
  }
  counters_.kv_beyond_range.store(static_cast<uint64_t>(stats.beyond_range), std::memory_order_relaxed);
}

}  // namespace fastdecode::rworker
