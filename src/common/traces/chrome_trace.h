// Writes what happened when, as a file that opens in Perfetto (ui.perfetto.dev) and in
// Chrome's about:tracing: the trace event format, one JSON array, an event a line. A file
// that was cut short opens too.
#pragma once

#include <cstdint>
#include <fstream>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"

namespace fastdecode {

// Buffered; an event costs about a microsecond. Owns its file. One thread at a time.
class ChromeTrace {
 public:
  struct Arg {
    std::string_view name;
    int64_t value = 0;
  };
  // Where an event is drawn: a process is a group of lanes.
  struct Lane {
    int process = 0;
    int lane = 0;
  };

  static constexpr int64_t kMaxEvents = 5'000'000;  // some 600 MB
  // What comes after `max_events` is dropped, and Close says how many that were.
  static Result<std::unique_ptr<ChromeTrace>> Create(const std::string& path, int64_t max_events = kMaxEvents);
  ~ChromeTrace();

  void NameProcess(int process, std::string_view name);
  void NameLane(Lane lane, std::string_view name);
  // Times: nanoseconds of any one clock. Names are ours: no quotes, no backslashes.
  void Span(Lane lane, std::string_view name, int64_t begin_ns, int64_t end_ns, std::initializer_list<Arg> args = {});
  void Instant(Lane lane, std::string_view name, int64_t at_ns);
  void Counter(int process, std::string_view name, int64_t at_ns, int64_t value);

  // Ends the file; an error names it (a full disk). Called by the destructor at the latest.
  Status Close();
  int64_t dropped() const { return dropped_; }

 private:
  ChromeTrace(std::string path, int64_t max_events);
  bool Room();
  void Begin(char phase, std::string_view name, Lane lane, int64_t at_ns);
  void End();
  void Name(const char* what, Lane lane, std::string_view name);

  std::string path_;
  std::vector<char> buffer_;
  std::ofstream file_;
  std::string line_;
  int64_t max_events_;
  int64_t events_ = 0;
  int64_t dropped_ = 0;
  bool first_ = true;
};

// The timeline of one S-worker and its R-workers: the same lanes whether they are real
// (fastdecode-sworker --trace-out) or simulated. One thread at a time.
class TimelineTrace {
 public:
  TimelineTrace(std::unique_ptr<ChromeTrace> file, int mini_batches, int rworkers);

  // A launched piece of work on the device: copied in, computed, copied out. `mini_batch` -1: prefill.
  void Stage(int mini_batch, int64_t begin_ns, int64_t copied_in_ns, int64_t computed_ns, int64_t end_ns);
  // In an R-worker's kernels. `rworker` -1: the one that was waited for last, whichever that was.
  void RPart(int rworker, int mini_batch, int64_t begin_ns, int64_t end_ns);
  // A pass of a mini-batch; W: cached tokens that it reads on the R-worker with the most.
  void Pass(int mini_batch, int64_t begin_ns, int64_t end_ns, int64_t rows, int64_t workload);
  void RWorkerLost(int rworker, int64_t at_ns);
  void RWorkerJoined(int rworker, int64_t at_ns);
  Status Close() { return file_->Close(); }
  int64_t dropped() const { return file_->dropped(); }

 private:
  std::unique_ptr<ChromeTrace> file_;
};

}  // namespace fastdecode
