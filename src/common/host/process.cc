#include "common/host/process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "common/base/fd.h"

namespace fastdecode {
namespace {

constexpr int kPollMs = 100;

[[noreturn]] void Exec(const std::vector<std::string>& command, int output) {
  std::vector<char*> argv;
  for (const std::string& word : command) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  setsid();
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  dup2(output, STDOUT_FILENO);
  dup2(open("/dev/null", O_RDONLY), STDIN_FILENO);
  execv(argv[0], argv.data());
  _exit(127);
}

}  // namespace

Result<ProcessResult> RunProcess(const std::vector<std::string>& command, bool capture, const std::atomic<int>* stop) {
  if (access(command[0].c_str(), X_OK) != 0) return NotFound(command[0] + ": " + std::strerror(errno));
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return Internal(std::string("pipe: ") + std::strerror(errno));
  Fd read_end(ends[0]);
  Fd write_end(ends[1]);
  const pid_t pid = fork();
  if (pid < 0) return Internal(std::string("fork: ") + std::strerror(errno));
  if (pid == 0) Exec(command, capture ? write_end.get() : STDERR_FILENO);
  write_end.Reset();

  ProcessResult result;
  bool told = false;
  bool reading = capture;
  int status = 0;
  std::array<char, 4096> buffer;
  while (reading || waitpid(pid, &status, WNOHANG) == 0) {
    pollfd item{reading ? read_end.get() : -1, POLLIN, 0};
    if (poll(&item, 1, kPollMs) > 0) {
      const ssize_t got = read(read_end.get(), buffer.data(), buffer.size());
      if (got > 0) result.output.append(buffer.data(), static_cast<size_t>(got));
      if (got == 0) reading = false;
    }
    if (stop != nullptr && stop->load() != 0 && !std::exchange(told, true)) kill(pid, SIGTERM);
  }
  result.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return result;
}

}  // namespace fastdecode
