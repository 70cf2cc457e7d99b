// Sends a workload's requests and takes the time of every token.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "common/api/api_client.h"
#include "workload.h"

namespace fastdecode {

struct Measured {
  double wall_s = 0;  // first submit to last answer, or as MeasuredPart says
  int64_t requests = 0;
  int64_t failed = 0;
  int64_t prompt_tokens = 0;                         // of what did not fail
  int64_t output_tokens = 0;                         // received
  double cached_before = 0;                          // tokens of an open request when it began, the mean
  std::vector<float> ttft_ms;                        // submit to first token, a request
  std::vector<float> itl_ms;                         // between two tokens of a request
  std::map<std::string, int64_t> failures;           // by code
  std::string first_failure;                         // its message
  nlohmann::json server = nlohmann::json::object();  // its stats over the same time
  Status lost;                                       // not ok: the server went away
};

// Which part of a run is measured; all of it unless it says otherwise.
struct MeasuredPart {
  bool decode_only = false;  // while all requests decode: from the last one's first token to the first one's end
  // From the moment when this share of the requests has ended until that one has; what is open
  // or waiting then is cancelled, and is neither an answer nor a failure.
  double from = 0, to = 1;
};

// One thread. `stop`, once not 0, ends the run: what is open is cancelled and counts as failed.
class Driver {
 public:
  Driver(ApiClient& client, const std::atomic<int>& stop) : client_(client), stop_(stop) {}

  // A few short requests, so that nothing in the measurement happens for the first time.
  Status WarmUp(const Workload& workload, uint64_t seed);
  // `show_progress`: one line on standard error, rewritten.
  Measured Run(const Workload& workload, uint64_t seed, bool show_progress, const MeasuredPart& part = {});

 private:
  struct Open {
    int64_t submitted_ns = 0;
    int64_t last_token_ns = 0;  // 0: none yet
    int prompt_tokens = 0;
    int expected = 0;
    int received = 0;
  };

  enum class Window { kBefore, kOpen, kClosed };

  Status Submit(size_t index, const BenchRequest& request, uint64_t seed);
  Status SubmitDue(const Workload& workload, uint64_t seed);
  Status Step(const Workload& workload, uint64_t seed);
  void Take(const TokensMessage& message);
  void Take(const FinishedMessage& message);
  void Fail(const std::string& code, const std::string& message);
  Status OpenWindow();
  Status CloseWindow();
  Status MoveWindow(size_t total, const MeasuredPart& part);  // opens and closes it when it is time
  void CancelOpen();
  void ShowProgress(size_t total, bool last);

  ApiClient& client_;
  const std::atomic<int>& stop_;
  std::unordered_map<RequestId, Open> open_;
  size_t next_ = 0;       // request to submit
  int64_t start_ns_ = 0;  // of the window
  Window window_ = Window::kBefore;
  int64_t next_progress_ns_ = 0;
  Measured measured_;
};

}  // namespace fastdecode
