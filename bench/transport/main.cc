// bench_transport: what the transports carry, beside what the machine carries without them.
//
// Round trip: a message of `bytes` (header included) there and one of the same size back, us,
// median and 99th percentile of each run. Bandwidth: messages one way, GB/s (10^9 bytes). With
// shm a message is read where it was written, so writing it there (a memcpy from private
// memory) is part of the work, of the limit's as well.
// Limits: shm: memcpy, with a flag to spin on or a futex; tcp: a bare socket. Runs of ours and
// of the limit alternate; a line holds the medians, least and largest over the runs, and
// ratio = ours / limit: of a round trip the smaller is better, of bandwidth the larger.
// Two threads, on two CPUs where there are two.
#include <gflags/gflags.h>

#include <algorithm>
#include <cstdio>
#include <optional>
#include <sstream>
#include <string>

#include "bench/transport/measure.h"
#include "common/base/logging.h"
#include "common/flags/parse_flags.h"

DEFINE_string(kinds, "shm,tcp", "transports to measure");
DEFINE_string(tests, "round_trip,bandwidth", "what to measure");
DEFINE_string(waiting, "spin,sleep", "how an owner waits for messages");
DEFINE_string(bytes, "64,1024,16384,65536,262144,1048576,16777216", "sizes of a message, header included");
DEFINE_string(peers, "1", "endpoints that one owner has, 1 to 8");
DEFINE_int32(runs, 7, "alternating runs");
DEFINE_double(run_ms, 60, "about how long a run is");

namespace fastdecode::bench {
namespace {

std::vector<std::string> Split(const std::string& text) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, ',');) parts.push_back(part);
  return parts;
}

bool Has(const std::vector<std::string>& list, const std::string& what) {
  return std::find(list.begin(), list.end(), what) != list.end();
}

double Quantile(std::vector<int64_t> values, double share) {
  std::sort(values.begin(), values.end());
  return static_cast<double>(values[static_cast<size_t>(share * static_cast<double>(values.size() - 1))]);
}

struct Spread {
  std::vector<double> runs;
  double median() const {
    std::vector<double> sorted = runs;
    std::sort(sorted.begin(), sorted.end());
    return sorted[sorted.size() / 2];
  }
  double min() const { return *std::min_element(runs.begin(), runs.end()); }
  double max() const { return *std::max_element(runs.begin(), runs.end()); }
};

const char* NameOf(Waiting waiting) { return waiting == Waiting::kSpin ? "spin" : "sleep"; }

void Print(const Kind& kind, const Work& work, const std::string& test, const char* unit, const Spread& ours,
           const Spread& limit, const std::string& limit_name, const Counters& counters) {
  std::printf(
      "{\"name\": \"transport\", \"case\": {\"kind\": \"%s\", \"test\": \"%s\", \"bytes\": %zu, \"peers\": %d, "
      "\"waiting\": \"%s\", \"cpus\": %d}, \"unit\": \"%s\", \"median\": %.4g, \"min\": %.4g, \"max\": %.4g, "
      "\"limit\": {\"what\": \"%s\", \"median\": %.4g, \"min\": %.4g, \"max\": %.4g}, \"ratio\": %.3f",
      kind.name().c_str(), test.c_str(), work.bytes, work.peers, NameOf(work.waiting), TwoCpus() ? 2 : 1, unit,
      ours.median(), ours.min(), ours.max(), limit_name.c_str(), limit.median(), limit.min(), limit.max(),
      ours.median() / limit.median());
  if (counters.messages > 0) {
    std::printf(", \"allocations_a_message\": %.4g", counters.allocations / counters.messages);
  }
  std::printf("}\n");
  std::fflush(stdout);
}

// So many that a run takes about run_ms.
int CountFor(double ns_each) {
  return static_cast<int>(std::clamp(FLAGS_run_ms * 1e6 / std::max(ns_each, 1.0), 8.0, 200'000.0));
}

void RoundTrip(const Kind& kind, Work work) {
  work.count = 8;
  work.count = CountFor(Quantile(Rig(kind, work).RoundTrips(), 0.5));
  Rig rig(kind, work);
  Spread ours[2], limit[2];
  constexpr double kShares[] = {0.5, 0.99};
  for (int run = 0; run < FLAGS_runs; ++run) {
    const std::vector<int64_t> mine = rig.RoundTrips();
    const std::vector<int64_t> bare = kind.BareRoundTrips(work.bytes, work.count, work.waiting);
    for (size_t i = 0; i < 2; ++i) {
      ours[i].runs.push_back(Quantile(mine, kShares[i]) * 1e-3);
      limit[i].runs.push_back(Quantile(bare, kShares[i]) * 1e-3);
    }
  }
  const std::string name = kind.round_trip_limit(work.waiting);
  Print(kind, work, "round_trip_p50", "us", ours[0], limit[0], name, rig.counters());
  Print(kind, work, "round_trip_p99", "us", ours[1], limit[1], name, {});
}

void Bandwidth(const Kind& kind, Work work) {
  work.count = 64;
  work.count = CountFor(static_cast<double>(Rig(kind, work).Stream()) / 64);
  Rig rig(kind, work);
  Spread ours, limit;
  for (int run = 0; run < FLAGS_runs; ++run) {
    const double bytes = static_cast<double>(work.bytes) * work.count;
    ours.runs.push_back(bytes * work.peers / static_cast<double>(rig.Stream()));
    limit.runs.push_back(bytes / static_cast<double>(kind.BareStream(work.bytes, work.count, work.waiting)));
  }
  Print(kind, work, "bandwidth", "GB/s", ours, limit, kind.bandwidth_limit(), {});
}

int Main() {
  PinNear();
  const auto kinds = Split(FLAGS_kinds), tests = Split(FLAGS_tests), waits = Split(FLAGS_waiting);
  for (const auto& kind : AllKinds()) {
    if (!Has(kinds, kind->name())) continue;
    for (const std::string& peers : Split(FLAGS_peers)) {
      for (const std::string& bytes : Split(FLAGS_bytes)) {
        for (Waiting waiting : {Waiting::kSpin, Waiting::kSleep}) {
          if (!Has(waits, NameOf(waiting))) continue;
          Work work;
          work.bytes = std::max<size_t>(sizeof(MessageHeader), std::stoul(bytes));
          work.peers = std::clamp(std::stoi(peers), 1, 8);
          work.waiting = waiting;
          if (Has(tests, "round_trip")) RoundTrip(*kind, work);
          if (Has(tests, "bandwidth")) Bandwidth(*kind, work);
        }
      }
    }
  }
  return 0;
}

}  // namespace
}  // namespace fastdecode::bench

int main(int argc, char** argv) {
  const fastdecode::ProgramText text{"bench_transport",
                                     "Measures round trips and bandwidth of the transports, each beside its limit;\n"
                                     "prints a JSON object a line. Exit status: 0 done, 2 usage."};
  if (const std::optional<int> status = fastdecode::ParseFlags(text, &argc, &argv)) return *status;
  fastdecode::InitLogging(argv[0]);
  return fastdecode::bench::Main();
}
