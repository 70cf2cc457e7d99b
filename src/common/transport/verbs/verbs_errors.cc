#include "common/transport/verbs/verbs_errors.h"

#include <arpa/inet.h>
#include <sys/resource.h>

#include <cerrno>
#include <cstring>

namespace fastdecode {
namespace {

bool HoldsIpv4(const ibv_gid& gid) { return IN6_IS_ADDR_V4MAPPED(reinterpret_cast<const in6_addr*>(gid.raw)); }

std::string MemlockLimit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0) return "unknown";
  return limit.rlim_cur == RLIM_INFINITY ? "unlimited" : std::to_string(limit.rlim_cur) + " bytes";
}

}  // namespace

Status CompletionError(const std::string& what, ibv_wc_status status) {
  switch (status) {
    case IBV_WC_RETRY_EXC_ERR:
      return Unavailable(what +
                         ": retry exceeded: the other end does not acknowledge what is sent. Its process or host died, "
                         "or the network between is cut; check the host, the cable and the switch");
    case IBV_WC_RNR_RETRY_EXC_ERR:
      return Unavailable(
          what +
          ": receiver not ready: the other end posted no receive for what is sent. Both ends must run the "
          "same version");
    case IBV_WC_REM_ACCESS_ERR:
      return Unavailable(what +
                         ": the other end's memory refuses the write: its rings belong to another session by now");
    case IBV_WC_REM_INV_REQ_ERR:
    case IBV_WC_REM_OP_ERR:
      return Unavailable(what + ": the other end's queue pair is in error: it ended the session or failed");
    case IBV_WC_WR_FLUSH_ERR:
      return Unavailable(what + ": queue pair error: the device stopped it (see the kernel's log for the device)");
    default:
      return Internal(what + ": queue pair error: " + ibv_wc_status_str(status) +
                      " (see the kernel's log for the device)");
  }
}

Status RegistrationError(size_t bytes, int error) {
  std::string text = "cannot register " + std::to_string(bytes) + " bytes of message slots with the RDMA device: ";
  if (error == ENOMEM) {
    text +=
        "RLIMIT_MEMLOCK allows " + MemlockLimit() +
        " of locked memory, or there is too little memory. Raise it: `ulimit -l unlimited`, \"* - memlock unlimited\" "
        "in /etc/security/limits.d, or LimitMEMLOCK=infinity in a systemd unit";
  } else {
    text += std::strerror(error);
  }
  return {StatusCode::kResourceExhausted, std::move(text)};
}

Status ConnectError(const std::string& what, const std::string& own_gid, const std::string& peer_gid, int error) {
  return Unavailable(
      what + ": no way from GID " + own_gid + " to the other end's GID " + peer_gid + " (" + std::strerror(error) +
      "): wrong GID or no route. Name GIDs of one network by transport.verbs.gid_index and the R-worker's "
      "--verbs_gid_index, and see that each host reaches the other's address");
}

std::string FormatGid(const ibv_gid& gid) {
  char text[INET6_ADDRSTRLEN] = {};
  if (HoldsIpv4(gid)) {
    inet_ntop(AF_INET, gid.raw + 12, text, sizeof(text));
  } else {
    inet_ntop(AF_INET6, gid.raw, text, sizeof(text));
  }
  return text;
}

}  // namespace fastdecode
