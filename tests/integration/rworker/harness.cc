#include "tests/integration/rworker/harness.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "common/base/clock.h"
#include "common/base/fd.h"
#include "common/base/logging.h"
#include "common/config/address.h"

extern char** environ;

namespace fastdecode {
namespace {

using std::chrono::milliseconds;

int64_t NowMs() { return NowNs() / 1'000'000; }

int Spawn(const std::vector<std::string>& flags, int stdout_fd, int stderr_fd) {
  std::vector<char*> argv;
  std::string program = FASTDECODE_RWORKER_PATH;
  argv.push_back(program.data());
  std::vector<std::string> copies = flags;
  for (std::string& flag : copies) argv.push_back(flag.data());
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, stdout_fd, 1);
  posix_spawn_file_actions_adddup2(&actions, stderr_fd, 2);
  pid_t pid = -1;
  CHECK_EQ(posix_spawn(&pid, program.c_str(), &actions, nullptr, argv.data(), environ), 0) << program;
  posix_spawn_file_actions_destroy(&actions);
  return pid;
}

int ExitStatus(int status) { return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status); }

std::string ReadFile(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

std::string ReadLine(int fd, milliseconds patience) {
  std::string line;
  int64_t deadline = NowMs() + patience.count();
  while (line.empty() || line.back() != '\n') {
    pollfd wait{fd, POLLIN, 0};
    int left = static_cast<int>(deadline - NowMs());
    if (left <= 0 || poll(&wait, 1, left) <= 0) break;
    char c;
    if (read(fd, &c, 1) != 1) break;
    line.push_back(c);
  }
  return line;
}

}  // namespace

Secret TestSecret(char fill) {
  TempFolder folder;
  std::string path = folder.File("secret");
  std::ofstream(path) << std::string(64, fill);
  chmod(path.c_str(), 0600);
  return LoadSecret(path).value();
}

SessionOptions SmallSession() {
  SessionOptions options;
  options.shape = {2, 4, 2, 16};
  options.block_tokens = 32;
  options.max_context = 256;
  options.max_sequences = 32;
  options.mini_batches = 2;
  options.max_rows = 16;
  options.bulk_slot_bytes = 4096;
  options.heartbeat_ms = 50;
  options.peer_timeout_ms = 1500;
  options.name = "test sworker";
  return options;
}

TempFolder::TempFolder() {
  std::string pattern = (std::filesystem::temp_directory_path() / "fastdecode-test-XXXXXX").string();
  CHECK(mkdtemp(pattern.data()) != nullptr);
  path_ = pattern;
}

TempFolder::~TempFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

RWorkerProcess::RWorkerProcess(std::vector<std::string> more_flags, int port) {
  std::string secret = folder_.File("secret");
  std::ofstream(secret) << std::string(64, 's');
  chmod(secret.c_str(), 0600);
  std::vector<std::string> flags = {"--listen=127.0.0.1:" + std::to_string(port), "--kv_memory=16MiB", "--threads=1",
                                    "--secret_file=" + secret};
  flags.insert(flags.end(), more_flags.begin(), more_flags.end());
  int pipe_fds[2];
  CHECK_EQ(pipe2(pipe_fds, O_CLOEXEC), 0);
  Fd out(pipe_fds[0]), in(pipe_fds[1]);
  Fd log(open(folder_.File("log").c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
  pid_ = Spawn(flags, in.get(), log.get());
  in.Reset();
  ready_line_ = ReadLine(out.get(), std::chrono::seconds(30));
  std::istringstream words(ready_line_);
  std::string ready, name;
  words >> ready >> name >> address_;
  CHECK(ready == "ready" && name == "fastdecode-rworker") << "not ready: " << ready_line_ << "\n" << this->log();
}

RWorkerProcess::~RWorkerProcess() {
  if (pid_ < 0) return;
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
}

int RWorkerProcess::port() const { return ParseHostPort(address_).value().port; }

void RWorkerProcess::Signal(int signal) { CHECK_EQ(kill(pid_, signal), 0); }

int RWorkerProcess::WaitExit() {
  int status = 0;
  CHECK_EQ(waitpid(pid_, &status, 0), pid_);
  pid_ = -1;
  return ExitStatus(status);
}

bool RWorkerProcess::alive() { return pid_ >= 0 && waitpid(pid_, nullptr, WNOHANG) == 0; }

std::string RWorkerProcess::log() const { return ReadFile(folder_.File("log")); }

int RWorkerProcess::CountLog(const std::string& text) const {
  int count = 0;
  for (int64_t deadline = NowMs() + 2000; count == 0 && NowMs() < deadline;) {
    std::istringstream lines(log());
    for (std::string line; std::getline(lines, line);) count += line.find(text) != std::string::npos ? 1 : 0;
    if (count == 0) std::this_thread::sleep_for(milliseconds(10));
  }
  return count;
}

ProgramEnd RunRWorker(const std::vector<std::string>& flags, int signal, milliseconds after) {
  TempFolder folder;
  Fd out(open(folder.File("out").c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  int pid = Spawn(flags, out.get(), out.get());
  if (signal != 0) {
    std::this_thread::sleep_for(after);
    kill(pid, signal);
  }
  int status = 0;
  CHECK_EQ(waitpid(pid, &status, 0), pid);
  return {ExitStatus(status), ReadFile(folder.File("out"))};
}

PoolHarness::PoolHarness(std::vector<std::string> addresses, const SessionOptions& options, const Secret& secret,
                         AllocateSlots allocate)
    : joined_(addresses.size()), lost_(addresses.size()) {
  RWorkerCallbacks callbacks;
  callbacks.on_joined = [this](int index, const RWorkerGrant& grant, std::unique_ptr<Endpoint> endpoint) {
    std::lock_guard lock(mutex_);
    joined_[static_cast<size_t>(index)].push_back({grant, std::move(endpoint)});
    changed_.notify_all();
  };
  callbacks.on_lost = [this](int index, uint32_t incarnation, const Status& reason) {
    std::lock_guard lock(mutex_);
    lost_[static_cast<size_t>(index)].push_back({incarnation, reason});
    changed_.notify_all();
  };
  pool_ = RWorkerPool::Start(std::move(addresses), secret, options, std::move(allocate), callbacks).value();
}

template <typename T>
T PoolHarness::Take(std::vector<std::deque<T>>& queues, int index, milliseconds patience, const char* what) {
  std::unique_lock lock(mutex_);
  std::deque<T>& queue = queues[static_cast<size_t>(index)];
  bool came = changed_.wait_for(lock, patience, [&] { return !queue.empty(); });
  if (!came) {
    std::string missing;
    for (const auto& entry : pool_->missing()) missing += entry.reason.ToString() + "; ";
    LOG(FATAL) << what << " did not come within " << patience.count() << " ms; missing: " << missing;
  }
  T value = std::move(queue.front());
  queue.pop_front();
  return value;
}

PoolHarness::Joined PoolHarness::WaitJoined(int index, milliseconds patience) {
  return Take(joined_, index, patience, "on_joined");
}

PoolHarness::Lost PoolHarness::WaitLost(int index, milliseconds patience) {
  return Take(lost_, index, patience, "on_lost");
}

RWorkerStats PoolHarness::FreshStats(int index) {
  // The next but one: that was filled after this call for sure.
  int64_t first = pool_->stats(index).received_ns;
  int64_t second = first;
  for (int64_t deadline = NowMs() + 10'000; NowMs() < deadline;) {
    RWorkerStats stats = pool_->stats(index);
    if (second == first && stats.received_ns != first) second = stats.received_ns;
    if (second != first && stats.received_ns != second) return stats;
    std::this_thread::sleep_for(milliseconds(2));
  }
  LOG(FATAL) << "no heartbeats";
  return {};
}

Status PoolHarness::WaitMissing(const std::string& text) {
  Status last;
  for (int64_t deadline = NowMs() + 10'000; NowMs() < deadline;) {
    auto missing = pool_->missing();
    last = missing.empty() ? OkStatus() : missing.front().reason;
    if (last.message().find(text) != std::string::npos) return last;
    std::this_thread::sleep_for(milliseconds(2));
  }
  return last;
}

}  // namespace fastdecode
