#include "rworker/self_test/self_test.h"

#include <algorithm>
#include <charconv>
#include <cinttypes>
#include <cmath>

#include "common/base/clock.h"
#include "kernels/kernel_check.h"
#include "rworker/host_limits.h"
#include "rworker/pool_memory.h"
#include "rworker/read_bandwidth.h"
#include "rworker/self_test/barrier.h"
#include "rworker/self_test/bench_case.h"
#include "rworker/self_test/host_report.h"

namespace fastdecode::rworker {
namespace {

constexpr int kReadPasses = 5;
constexpr int kAttentionPasses = 3;
// Below that share of the read bandwidth something beside memory holds attention up.
constexpr double kGoodShare = 0.6;
constexpr double kNsPerSecond = 1e9;

std::string Format(const char* format, double value) {
  char text[64];
  std::snprintf(text, sizeof(text), format, value);
  return text;
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

class SelfTest {
 public:
  SelfTest(const SelfTestOptions& options, const kernels::KernelChoice& kernel, CpuTopology topology, std::FILE* out)
      : options_(options),
        kernel_(kernel),
        topology_(std::move(topology)),
        threads_(options.threads > 0 ? options.threads : std::min(AllowedThreads(), topology_.num_cpus())),
        out_(out) {}

  bool Run() {
    for (const Finding& finding : ReportHost(topology_)) Print(finding);
    const bool right = CheckTheKernel();
    Barrier();
    Memory();
    if (right) Attention();
    std::fprintf(out_, "%s\n", right ? "self-test: fine" : "self-test: FAILED, do not use this host");
    return right;
  }

 private:
  void Print(const Finding& finding) {
    std::fprintf(out_, "%-11s %s\n", finding.name.c_str(), finding.value.c_str());
    if (!finding.fix.empty()) std::fprintf(out_, "%-11s -> %s\n", "", finding.fix.c_str());
    std::fflush(out_);
  }
  double SecondsLeft() const { return static_cast<double>(deadline_ns_ - NowNs()) / kNsPerSecond; }
  std::string Threads(int count) const { return std::to_string(count) + (count == 1 ? " thread" : " threads"); }

  bool CheckTheKernel() {
    if (kernel_.kernel == nullptr) {
      Print({"kernel", "none", kernel_.error});
      return false;
    }
    const std::string name = std::string(kernel_.kernel->name) + " (" + std::string(kernel_.kernel->description) + ")";
    const std::string fault = kernels::FaultOfKernel(*kernel_.kernel);
    if (fault.empty()) {
      Print({"kernel", name + ": agrees with the reference", ""});
    } else {
      Print({"kernel", name + ": WRONG: " + fault,
             "name another (--kernel); if that is wrong too, the CPU or its memory is faulty, or the build is not for "
             "it"});
    }
    return fault.empty();
  }

  void Barrier() {
    ComputePool pool(threads_, topology_);
    const double us = MeasureBarrierUs(&pool);
    Finding finding{"barrier",
                    Threads(threads_) + (pool.pinned() ? ", pinned: " : ", not pinned: ") +
                        Format("%.1f us a layer", us) + Format(" (target %.0f us)", kBarrierTargetUs),
                    ""};
    if (threads_ > 1 && !pool.pinned()) {
      finding.fix =
          "start no more threads than this process has CPUs (--threads, cpuset, quota): only then they are pinned";
    } else if (us > kBarrierTargetUs) {
      finding.fix =
          "other processes run on these CPUs, or the hypervisor takes them away: give the R-worker CPUs of its own";
    }
    Print(finding);
  }

  // Bandwidth of one thread and of all, on memory like the cache's.
  void Memory() {
    if (SecondsLeft() <= 0) return Print({"read", "not measured: no time left", ""});
    PoolOptions pool_options;
    pool_options.topology = topology_;
    pool_options.bytes = BytesBeyondCaches() * std::ssize(topology_.nodes);
    pool_options.prefault_threads = threads_;
    const Result<PoolMemory> memory = PoolMemory::Map(pool_options);
    if (!memory.ok()) {
      return Print({"read",
                    "not measured: a pass must read " + std::to_string(pool_options.bytes >> 20) +
                        " MiB, or caches would answer. " + memory.status().message(),
                    ""});
    }
    Print({"pages", memory->DescribePages(), memory->PageHint()});
    ComputePool one(1, topology_);
    ReadBandwidth alone(&one, memory->data(), memory->part_bytes());
    // One thread has half of the time at most; which method is best differs little with more.
    const ReadMethod method = alone.FindBest(NowNs() + static_cast<int64_t>(SecondsLeft() / 4 * kNsPerSecond));
    const double one_rate = Rate(alone, method);
    Print({"read", "1 thread: " + Format("%.1f GB/s", one_rate / 1e9) + " (" + method.ToString() + ")", ""});
    read_method_ = method;
    if (threads_ == 1) return;
    ComputePool pool(threads_, topology_);
    ReadBandwidth all(&pool, memory->data(), memory->bytes(), memory->num_parts());
    read_method_ = all.FindBest(NowNs() + static_cast<int64_t>(SecondsLeft() / 4 * kNsPerSecond));
    const double rate = Rate(all, read_method_);
    Finding finding{"",
                    Threads(threads_) + ": " + Format("%.1f GB/s", rate / 1e9) +
                        Format(", %.1f times one (", rate / one_rate) + read_method_.ToString() + ")",
                    ""};
    if (rate < 1.2 * one_rate) {
      finding.fix = "more threads read hardly more: are memory channels empty (dmidecode -t memory), or CPUs shared?";
    }
    Print(finding);
  }

  static double Rate(ReadBandwidth& probe, const ReadMethod& method) {
    std::vector<double> rates;
    for (int pass = 0; pass < kReadPasses; ++pass) rates.push_back(probe.Measure(method));
    return Median(rates);
  }

  void Attention() {
    double longest = 1;
    for (size_t i = 0; i < options_.shapes.size(); ++i) {
      const AttentionShape& shape = options_.shapes[i];
      char name[64];
      std::snprintf(name, sizeof(name), "%" PRId32 "x%" PRId32 "x%" PRId32 ": ", shape.num_heads, shape.num_kv_heads,
                    shape.head_dim);
      Finding finding{i == 0 ? "attention" : "", name, ""};
      if (SecondsLeft() < longest) {
        finding.value += "not measured: no time left";
        finding.fix = Format("--self_test_seconds is %.0f", options_.seconds);
        Print(finding);
        continue;
      }
      const int64_t start_ns = NowNs();
      Measure(shape, finding);
      Print(finding);
      longest = std::max(longest, static_cast<double>(NowNs() - start_ns) / kNsPerSecond);
    }
  }

  void Measure(const AttentionShape& shape, Finding& finding) const {
    bench::BenchCase bench_case;
    bench_case.heads = shape.num_heads;
    bench_case.kv_heads = shape.num_kv_heads;
    bench_case.head_dim = shape.head_dim;
    bench_case.threads = threads_;
    bench_case.passes = kAttentionPasses;
    bench_case.kernel = std::string(kernel_.kernel->name);
    bench_case.topology = topology_;
    bench_case.read_method = read_method_;
    const Result<bench::BenchResult> result = bench::RunBench(bench_case);
    if (!result.ok()) {
      finding.value += "not measured: " + result.status().message();
      return;
    }
    const double share = bench::ShareOfRead(*result);
    finding.value += Threads(threads_) + " read K and V at " + Format("%.1f GB/s", Median(result->attend) / 1e9) +
                     Format(", %.2f of the read bandwidth", share);
    if (share >= kGoodShare) return;
    const int group = shape.num_heads / shape.num_kv_heads;
    finding.fix = group >= 4
                      ? "with " + std::to_string(group) + " query heads a KV head arithmetic is the limit here, not " +
                            "memory: more threads help, faster memory does not"
                      : std::string("memory is faster than that: look at clock and pages above");
  }

  const SelfTestOptions& options_;
  const kernels::KernelChoice& kernel_;
  const CpuTopology topology_;
  const int threads_;
  std::FILE* const out_;
  const int64_t deadline_ns_ = NowNs() + static_cast<int64_t>(options_.seconds * kNsPerSecond);
  ReadMethod read_method_;
};

}  // namespace

Result<std::vector<AttentionShape>> ParseShapes(const std::string& text) {
  std::vector<AttentionShape> shapes;
  const char* at = text.data();
  const char* const end = text.data() + text.size();
  while (at != end) {
    int32_t numbers[3] = {};
    bool good = true;
    for (int i = 0; i < 3 && good; ++i) {
      const auto [rest, error] = std::from_chars(at, end, numbers[i]);
      const bool last = i == 2;
      good =
          error == std::errc() && numbers[i] >= 1 && (last ? rest == end || *rest == ',' : rest != end && *rest == 'x');
      at = rest == end ? end : rest + 1;
    }
    const AttentionShape shape{1, numbers[0], numbers[1], numbers[2]};
    good = good && shape.num_heads <= kMaxHeads && shape.num_kv_heads <= shape.num_heads &&
           shape.num_heads % shape.num_kv_heads == 0 && shape.head_dim % 8 == 0 && shape.head_dim <= kMaxHeadDim;
    if (!good) {
      return InvalidArgument("\"" + text.substr(0, 80) + "\" is no list of shapes; expected query heads x KV heads x " +
                             "head_dim (a multiple of 8 up to " + std::to_string(kMaxHeadDim) +
                             "), as in 32x8x128,32x32x128");
    }
    shapes.push_back(shape);
  }
  return shapes;
}

Result<bool> RunSelfTest(const SelfTestOptions& options, std::FILE* out) {
  CpuTopology topology = ReadCpuTopology(AllowedCpus());
  if (options.numa_node != kAnyNode) {
    FD_ASSIGN_OR_RETURN(topology, OnlyNode(topology, options.numa_node));
    (void)BindThisThread(topology.nodes.front().cpus);
  }
  const kernels::KernelChoice kernel = kernels::ChooseAttentionKernel(options.kernel, kernels::DetectCpuFeatures());
  if (kernel.kernel == nullptr && options.kernel != "auto") return InvalidArgument(kernel.error);
  return SelfTest(options, kernel, std::move(topology), out).Run();
}

}  // namespace fastdecode::rworker
