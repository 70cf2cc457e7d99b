#include "common/config/secret.h"

#include <fcntl.h>
#include <sodium.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string_view>

#include "common/base/fd.h"

namespace fastdecode {
namespace {

constexpr size_t kMinSecretBytes = 32;
constexpr size_t kMaxSecretBytes = 4096;
constexpr std::string_view kSpace = " \t\r\n\v\f";

// The remedy that fits a path that a shell may have to read.
std::string HowToCreate(const std::string& path) {
  return "create one with: (umask 077; openssl rand -hex 32 > '" + path + "'), or let fastdecode-cluster up do it";
}

Status CannotOpen(const std::string& path, int error) {
  if (error == ENOENT || error == ENOTDIR) {
    return NotFound("secret file " + path + " does not exist; " + HowToCreate(path));
  }
  const StatusCode code =
      error == EACCES || error == EPERM ? StatusCode::kPermissionDenied : StatusCode::kInvalidArgument;
  return {code, "secret file " + path + " cannot be read: " + std::strerror(error)};
}

Status CheckMode(const std::string& path, int fd) {
  struct stat info;
  if (fstat(fd, &info) != 0) return CannotOpen(path, errno);
  if (!S_ISREG(info.st_mode)) return InvalidArgument("secret file " + path + " is not a regular file");
  if ((info.st_mode & 077) == 0) return OkStatus();
  char mode[8];
  std::snprintf(mode, sizeof(mode), "%04o", static_cast<unsigned>(info.st_mode & 07777));
  return {StatusCode::kPermissionDenied, "secret file " + path + " has mode " + mode +
                                             ", so others than its owner may use it; expected 0600: chmod 600 '" +
                                             path + "', and make a new secret if it may have been read"};
}

}  // namespace

Result<Secret> LoadSecret(const std::string& path) {
  // O_NONBLOCK: opening a FIFO must not wait for a writer before CheckMode refuses it.
  Fd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd.valid()) return CannotOpen(path, errno);
  FD_RETURN_IF_ERROR(CheckMode(path, fd.get()));

  std::array<char, kMaxSecretBytes + 1> buffer;
  size_t size = 0;
  while (size < buffer.size()) {
    const ssize_t got = read(fd.get(), buffer.data() + size, buffer.size() - size);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return CannotOpen(path, errno);
    if (got == 0) break;
    size += static_cast<size_t>(got);
  }
  std::string_view text(buffer.data(), size);
  const size_t first = text.find_first_not_of(kSpace);
  text = first == std::string_view::npos ? "" : text.substr(first, text.find_last_not_of(kSpace) - first + 1);

  Secret secret;
  Status status;
  if (size > kMaxSecretBytes) {
    status = InvalidArgument("secret file " + path + " is longer than 4096 bytes; " + HowToCreate(path));
  } else if (text.size() < kMinSecretBytes) {
    status = InvalidArgument("secret file " + path + " holds " + std::to_string(text.size()) +
                             " bytes without the white space around them; expected at least 32; " + HowToCreate(path));
  } else if (sodium_init() < 0) {
    status = Internal("libsodium could not be initialised");
  } else {
    crypto_generichash(secret.key.data(), secret.key.size(), reinterpret_cast<const unsigned char*>(text.data()),
                       text.size(), nullptr, 0);
  }
  sodium_memzero(buffer.data(), buffer.size());
  if (!status.ok()) return status;
  return secret;
}

}  // namespace fastdecode
