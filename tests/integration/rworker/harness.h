// What the R-worker's tests share: the real process, a pool that reports to the test, and
// small session options.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/config/secret.h"
#include "sworker/rworkers/rworker_pool.h"

namespace fastdecode {

Secret TestSecret(char fill = 's');

// 2 layers, 4 heads, 2 KV heads, head_dim 16; quick heartbeats.
SessionOptions SmallSession();

// A folder that goes with its contents.
class TempFolder {
 public:
  TempFolder();
  ~TempFolder();
  std::string File(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

// The real fastdecode-rworker. Killed with the object.
class RWorkerProcess {
 public:
  // Waits for its ready line. port 0: any.
  explicit RWorkerProcess(std::vector<std::string> more_flags = {}, int port = 0);
  ~RWorkerProcess();

  const std::string& address() const { return address_; }
  const std::string& ready_line() const { return ready_line_; }
  int port() const;
  void Signal(int signal);
  int WaitExit();  // exit status; 128 + signal if one killed it
  bool alive();
  std::string log() const;
  // Lines of its log that hold `text`, waiting up to two seconds for the first.
  int CountLog(const std::string& text) const;

 private:
  TempFolder folder_;
  int pid_ = -1;
  std::string address_;
  std::string ready_line_;
};

// Runs the program to its end.
struct ProgramEnd {
  int status = 0;
  std::string output;  // stdout and stderr
};
// With `signal`, that is sent to it after `after`.
ProgramEnd RunRWorker(const std::vector<std::string>& flags, int signal = 0, std::chrono::milliseconds after = {});

// The pool, and what it said.
class PoolHarness {
 public:
  struct Joined {
    RWorkerGrant grant;
    std::unique_ptr<Endpoint> endpoint;
  };
  struct Lost {
    uint32_t incarnation = 0;
    Status reason;
  };

  explicit PoolHarness(std::vector<std::string> addresses, const SessionOptions& options = SmallSession(),
                       const Secret& secret = TestSecret(), AllocateSlots allocate = AllocatePageableSlots);
  // Ends the test program when nothing comes within `patience`.
  Joined WaitJoined(int index = 0, std::chrono::milliseconds patience = std::chrono::seconds(20));
  Lost WaitLost(int index = 0, std::chrono::milliseconds patience = std::chrono::seconds(20));
  // Statistics of a heartbeat that was sent after this call.
  RWorkerStats FreshStats(int index = 0);
  // Why the first R-worker is not joined, once the reason holds `text`.
  Status WaitMissing(const std::string& text);
  RWorkerPool& pool() { return *pool_; }

 private:
  template <typename T>
  T Take(std::vector<std::deque<T>>& queues, int index, std::chrono::milliseconds patience, const char* what);

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::deque<Joined>> joined_;  // under mutex_
  std::vector<std::deque<Lost>> lost_;      // under mutex_
  std::unique_ptr<RWorkerPool> pool_;
};

}  // namespace fastdecode
