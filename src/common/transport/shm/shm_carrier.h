// shm as a carrier: memory of the S-worker's, passed over a unix socket of the R-worker's.
//
//   offer    the host's boot id: other hosts, and virtual machines, have another one
//   answer   the abstract name of a unix socket that the R-worker listens on meanwhile
//   then     S connects to it; both prove the session's key as on every connection; S passes
//            the memory with a ShmPass; R maps it and answers with a ShmVerdict
//
// That the memory could be passed is the proof that both are on one host.
#pragma once

#include <memory>

#include "common/transport/carrier.h"

namespace fastdecode {

std::unique_ptr<Carrier> MakeShmCarrier(const TransportSettings& settings);

// On the unix socket, after the proofs. docs/wire.md is their page, too.
struct ShmPass {
  uint32_t magic = 0x4d484346;  // "FCHM"
  uint32_t reserved = 0;
  uint64_t bytes = 0;  // of the memory whose descriptor comes along
};
static_assert(sizeof(ShmPass) == 16);

struct ShmVerdict {
  uint32_t magic = 0x4d484346;
  uint32_t refusal = 0;  // 0: mapped; else a RefusalCode
  char text[248] = {};
};
static_assert(sizeof(ShmVerdict) == 256);

}  // namespace fastdecode
