#include "plan/hardware.h"

#include <iomanip>
#include <sstream>
#include <vector>

#include "plan/performance_model.h"

namespace fastdecode::plan {
namespace {

constexpr double kRows[] = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384};
constexpr double kPrefillTokens[] = {1, 16, 64, 256, 1024, 4096, 16384};
constexpr double kWireBytes[] = {1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9};
constexpr double kCopyLatency = 10e-6;
constexpr double kRowSeconds = 0.2e-6;  // of a sequence in one layer on a socket
constexpr double kCallSeconds = 15e-6;  // threads' barrier
constexpr double kSamplingRow = 0.3e-6;
constexpr double kPassSeconds = 200e-6;  // plan, sampling's launches

struct Rates {
  double flops, memory, launch;
};

// Weights are read once, and every row multiplies them: the two overlap only in part, so
// their sum is the safe side.
double MatrixSeconds(const Rates& rates, double parameters, double bytes, double rows) {
  return parameters * bytes / rates.memory + 2 * parameters * rows / rates.flops;
}

template <size_t n, typename Seconds>
Curve MakeCurve(const double (&at)[n], const Seconds& seconds) {
  std::vector<TimePoint> points;
  for (const double x : at) points.push_back({x, seconds(x), 0});
  return Curve(std::move(points));
}

}  // namespace

Status CheckFlag(const char* flag, double value, double min, double max) {
  if (value >= min && value <= max) return OkStatus();
  std::ostringstream text;
  text << std::setprecision(12) << "--" << flag << ": found " << value << "; expected a number from " << min << " to "
       << max;
  return InvalidArgument(text.str());
}

Status CheckFigures(const HardwareFigures& figures) {
  FD_RETURN_IF_ERROR(CheckFlag("gpu_tflops", figures.gpu_tflops, 1e-3, 1e5));
  FD_RETURN_IF_ERROR(CheckFlag("gpu_gbytes_per_s", figures.gpu_gbytes_per_s, 0.1, 1e5));
  FD_RETURN_IF_ERROR(CheckFlag("gpu_share", figures.gpu_share, 0.01, 1));
  FD_RETURN_IF_ERROR(CheckFlag("gpu_memory_share", figures.gpu_memory_share, 0.01, 1));
  FD_RETURN_IF_ERROR(CheckFlag("gpu_launch_us", figures.gpu_launch_us, 0, 1e5));
  FD_RETURN_IF_ERROR(CheckFlag("pcie_gbytes_per_s", figures.pcie_gbytes_per_s, 0.1, 1e4));
  FD_RETURN_IF_ERROR(CheckFlag("socket_gbytes_per_s", figures.socket_gbytes_per_s, 0.1, 1e5));
  FD_RETURN_IF_ERROR(CheckFlag("socket_share", figures.socket_share, 0.01, 1));
  FD_RETURN_IF_ERROR(CheckFlag("link_gbits_per_s", figures.link_gbits_per_s, 0.01, 1e5));
  return CheckFlag("link_latency_us", figures.link_latency_us, 0, 1e6);
}

ModelProfile ProfileOfHardware(const HardwareFigures& figures, const ModelKey& key, const std::string& name) {
  const Rates rates{figures.gpu_tflops * 1e12 * figures.gpu_share,
                    figures.gpu_gbytes_per_s * 1e9 * figures.gpu_memory_share, figures.gpu_launch_us * 1e-6};
  const double bytes = DtypeBytes(key.dtype);
  const auto parameters = static_cast<double>(LayerParameters(key));
  const auto head = static_cast<double>(key.vocab_size * key.hidden_size);
  const double q_row = 2.0 * key.head_dim * key.num_heads;  // bytes, f16
  const double qkv_row = q_row + 4.0 * key.head_dim * key.num_kv_heads;
  const double pcie = figures.pcie_gbytes_per_s * 1e9;

  ModelProfile model;
  model.name = name;
  model.key = key;
  model.mini_batches = 2;
  model.layer = MakeCurve(kRows, [&](double b) { return rates.launch + MatrixSeconds(rates, parameters, bytes, b); });
  model.copy_in = MakeCurve(kRows, [&](double b) { return kCopyLatency + b * q_row / pcie; });
  model.copy_out = MakeCurve(kRows, [&](double b) { return kCopyLatency + b * qkv_row / pcie; });
  model.outer = MakeCurve(
      kRows, [&](double b) { return kPassSeconds + MatrixSeconds(rates, head, bytes, b) + b * kSamplingRow; });
  // A prompt's own attention is 4 * tokens * context / 2 multiply-adds a head dimension.
  const double kv_row = qkv_row - q_row;
  model.prefill = MakeCurve(kPrefillTokens, [&](double n) {
    const double attention = 2 * n * n * key.head_dim * key.num_heads / rates.flops;
    return rates.launch + MatrixSeconds(rates, parameters, bytes, n) + attention + n * kv_row / pcie;
  });
  const auto qkv = static_cast<double>(key.hidden_size * key.head_dim * (key.num_heads + 2 * key.num_kv_heads));
  model.prefill_outer = MakeCurve(kPrefillTokens, [&](double n) {
    return kPassSeconds + rates.launch + MatrixSeconds(rates, qkv, bytes, n) + n * kv_row / pcie;
  });
  RWorkerProfile socket;
  socket.address = "a socket";
  socket.attend.seconds_per_token =
      static_cast<double>(KvTokenBytes(key)) / (figures.socket_gbytes_per_s * 1e9 * figures.socket_share);
  socket.attend.seconds_per_row = kRowSeconds;
  socket.attend.seconds_per_call = kCallSeconds;
  const double link = figures.link_gbits_per_s * 1e9 / 8;
  socket.wire = MakeCurve(kWireBytes, [&](double b) { return figures.link_latency_us * 1e-6 + b / link; });
  model.rworkers.push_back(socket);
  return model;
}

}  // namespace fastdecode::plan
