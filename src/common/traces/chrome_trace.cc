#include "common/traces/chrome_trace.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "common/base/logging.h"

namespace fastdecode {
namespace {

constexpr size_t kBufferBytes = size_t{1} << 20;
constexpr int kSWorker = 1, kRWorkers = 2;
constexpr int kDeviceLane = 0;  // mini-batches come after it

// Trace times are microseconds; three decimals keep the nanoseconds.
void AppendMicroseconds(std::string& out, int64_t ns) {
  ns = std::max<int64_t>(0, ns);
  const std::string rest = std::to_string(ns % 1000);
  out += std::to_string(ns / 1000) + "." + std::string(3 - rest.size(), '0') + rest;
}

}  // namespace

Result<std::unique_ptr<ChromeTrace>> ChromeTrace::Create(const std::string& path, int64_t max_events) {
  std::unique_ptr<ChromeTrace> trace(new ChromeTrace(path, max_events));
  if (!trace->file_.is_open()) return NotFound("timeline " + path + " cannot be written: " + std::strerror(errno));
  return trace;
}

ChromeTrace::ChromeTrace(std::string path, int64_t max_events)
    : path_(std::move(path)), buffer_(kBufferBytes), max_events_(max_events) {
  file_.rdbuf()->pubsetbuf(buffer_.data(), static_cast<std::streamsize>(buffer_.size()));
  file_.open(path_, std::ios::trunc);
  file_ << "[\n";
}

ChromeTrace::~ChromeTrace() {
  if (!file_.is_open()) return;
  if (const Status status = Close(); !status.ok()) LOG(ERROR) << status.message();
}

bool ChromeTrace::Room() {
  if (events_ < max_events_) return ++events_, true;
  ++dropped_;
  return false;
}

void ChromeTrace::Begin(char phase, std::string_view name, Lane lane, int64_t at_ns) {
  line_.assign(first_ ? "" : ",\n");
  first_ = false;
  line_ += R"({"ph":")";
  line_ += phase;
  line_ += R"(","name":")";
  line_ += name;
  line_ += R"(","pid":)" + std::to_string(lane.process) + R"(,"tid":)" + std::to_string(lane.lane) + R"(,"ts":)";
  AppendMicroseconds(line_, at_ns);
}

void ChromeTrace::End() {
  line_ += "}";
  file_ << line_;
}

void ChromeTrace::Name(const char* what, Lane lane, std::string_view name) {
  Begin('M', what, lane, 0);
  line_ += R"(,"args":{"name":")" + std::string(name) + R"("})";
  End();
}

void ChromeTrace::NameProcess(int process, std::string_view name) { Name("process_name", {process, 0}, name); }
void ChromeTrace::NameLane(Lane lane, std::string_view name) { Name("thread_name", lane, name); }

void ChromeTrace::Span(Lane lane, std::string_view name, int64_t begin_ns, int64_t end_ns,
                       std::initializer_list<Arg> args) {
  if (end_ns <= begin_ns || !Room()) return;
  Begin('X', name, lane, begin_ns);
  line_ += R"(,"dur":)";
  AppendMicroseconds(line_, end_ns - begin_ns);
  const char* separator = R"(,"args":{")";
  for (const Arg& arg : args) {
    line_ += separator;
    line_ += arg.name;
    line_ += R"(":)" + std::to_string(arg.value);
    separator = R"(,")";
  }
  if (args.size() > 0) line_ += "}";
  End();
}

void ChromeTrace::Instant(Lane lane, std::string_view name, int64_t at_ns) {
  if (!Room()) return;
  Begin('i', name, lane, at_ns);
  line_ += R"(,"s":"t")";
  End();
}

void ChromeTrace::Counter(int process, std::string_view name, int64_t at_ns, int64_t value) {
  if (!Room()) return;
  Begin('C', name, {process, 0}, at_ns);
  line_ += R"(,"args":{"value":)" + std::to_string(value) + "}";
  End();
}

Status ChromeTrace::Close() {
  file_ << "\n]\n";
  file_.close();
  if (!file_.good()) return Internal("timeline " + path_ + " could not be written: " + std::strerror(errno));
  return OkStatus();
}

TimelineTrace::TimelineTrace(std::unique_ptr<ChromeTrace> file, int mini_batches, int rworkers)
    : file_(std::move(file)) {
  file_->NameProcess(kSWorker, "S-worker");
  file_->NameLane({kSWorker, kDeviceLane}, "device");
  for (int m = 0; m < mini_batches; ++m) {
    file_->NameLane({kSWorker, kDeviceLane + 1 + m}, "mini-batch " + std::to_string(m));
  }
  file_->NameProcess(kRWorkers, "R-workers");
  file_->NameLane({kRWorkers, 0}, "waited for last");
  for (int r = 0; r < rworkers; ++r) file_->NameLane({kRWorkers, r + 1}, "R-worker " + std::to_string(r));
}

void TimelineTrace::Stage(int mini_batch, int64_t begin_ns, int64_t copied_in_ns, int64_t computed_ns, int64_t end_ns) {
  const ChromeTrace::Lane device{kSWorker, kDeviceLane};
  file_->Span(device, "copy in", begin_ns, copied_in_ns, {{"mini_batch", mini_batch}});
  if (mini_batch < 0) {
    file_->Span(device, "prefill", copied_in_ns, computed_ns);
  } else {
    file_->Span(device, "S-part", copied_in_ns, computed_ns, {{"mini_batch", mini_batch}});
  }
  file_->Span(device, "copy out", computed_ns, end_ns, {{"mini_batch", mini_batch}});
}

void TimelineTrace::RPart(int rworker, int mini_batch, int64_t begin_ns, int64_t end_ns) {
  file_->Span({kRWorkers, rworker + 1}, "R-part", begin_ns, end_ns, {{"mini_batch", mini_batch}});
}

void TimelineTrace::Pass(int mini_batch, int64_t begin_ns, int64_t end_ns, int64_t rows, int64_t workload) {
  file_->Span({kSWorker, kDeviceLane + 1 + mini_batch}, "pass", begin_ns, end_ns, {{"rows", rows}, {"W", workload}});
  file_->Counter(kSWorker, "rows of mini-batch " + std::to_string(mini_batch), begin_ns, rows);
  file_->Counter(kSWorker, "W of mini-batch " + std::to_string(mini_batch), begin_ns, workload);
}

void TimelineTrace::RWorkerLost(int rworker, int64_t at_ns) { file_->Instant({kRWorkers, rworker + 1}, "lost", at_ns); }
void TimelineTrace::RWorkerJoined(int rworker, int64_t at_ns) {
  file_->Instant({kRWorkers, rworker + 1}, "joined", at_ns);
}

}  // namespace fastdecode
