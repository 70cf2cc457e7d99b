// What can go wrong with RDMA, in words: what happened, what it means, what to do.
#pragma once

#include <infiniband/verbs.h>

#include <cstddef>
#include <string>

#include "common/base/status.h"

namespace fastdecode {

// A work request that failed. what: "decode stream of rworker 10.0.0.2:7200".
Status CompletionError(const std::string& what, ibv_wc_status status);

// ibv_reg_mr failed: above all RLIMIT_MEMLOCK, with the limit as it is.
Status RegistrationError(size_t bytes, int error);

// A queue pair could not be connected to the peer at `peer_gid`.
Status ConnectError(const std::string& what, const std::string& own_gid, const std::string& peer_gid, int error);

// "fe80:0:...": all eight groups; an IPv4 address where the GID holds one.
std::string FormatGid(const ibv_gid& gid);

}  // namespace fastdecode
