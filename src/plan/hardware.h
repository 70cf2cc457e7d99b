// A profile from data sheets, where nothing has been measured: rooflines with stated
// shares of what the sheets promise.
#pragma once

#include <string>

#include "common/base/status.h"
#include "plan/profile.h"

namespace fastdecode::plan {

struct HardwareFigures {
  double gpu_tflops = 125;             // dense, of the S-part's dtype (A10: 125 of f16)
  double gpu_gbytes_per_s = 600;       // of the device's memory
  double gpu_share = 0.55;             // of the FLOP/s that matrix products reach
  double gpu_memory_share = 0.8;       // of the bandwidth that they reach
  double gpu_launch_us = 40;           // of a layer, whatever its rows
  double pcie_gbytes_per_s = 20;       // copies between device and host
  double socket_gbytes_per_s = 204.8;  // of one R-worker's memory (8 channels of DDR4-3200)
  double socket_share = 0.6;           // of it that attention reads K and V with
  double link_gbits_per_s = 100;       // of the S-worker's network
  double link_latency_us = 15;         // of one exchange, both ways
};

// kInvalidArgument, naming the flag of fastdecode-plan, what it was and what it may be.
Status CheckFlag(const char* flag, double value, double min, double max);

// Bounds every figure; kInvalidArgument names the flag of fastdecode-plan that gave it.
Status CheckFigures(const HardwareFigures& figures);

// One R-worker, a socket. `key`: a GPU's (device "cuda") or, with the figures taken for a
// CPU's, "cpu".
ModelProfile ProfileOfHardware(const HardwareFigures& figures, const ModelKey& key, const std::string& name);

}  // namespace fastdecode::plan
