// bench_transport: what the transports carry, beside what the machine carries without them.
//
// Round trip: a message of `bytes` (header included) there and one of the same size back, us,
// median and 99th percentile of each run. Bandwidth: messages one way, GB/s (10^9 bytes). With
// shm a message is read where it was written, so writing it there (a memcpy from private
// memory) is part of the work, of the limit's as well.
// Limits: shm: memcpy, with a flag to spin on or a futex; tcp: a bare socket; verbs: bare queue
// pairs. Runs of ours and of the limit alternate; a line holds the medians, least and largest
// over the runs, and ratio = ours / limit: of a round trip the smaller is better, of bandwidth
// the larger. Two threads, on two CPUs where there are two; or, with --listen on one host and
// --connect on another, two processes.
//
// messages: of ours, in all runs. allocations_a_message: of this process, in the steady state. calls_a_message (verbs):
// calls of the device's driver by both ends; of post_send each is a doorbell, writes are its requests.
#include <gflags/gflags.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <sstream>
#include <string>
#include <thread>

#include "bench/transport/measure.h"
#include "common/base/logging.h"
#include "common/flags/parse_flags.h"

DEFINE_string(kinds, "shm,tcp,verbs", "transports to measure, where they can be had");
DEFINE_string(tests, "round_trip,bandwidth", "what to measure");
DEFINE_string(waiting, "spin,sleep", "how an owner waits for messages");
DEFINE_string(bytes, "64,1024,16384,65536,262144,1048576,16777216", "sizes of a message, header included");
DEFINE_string(peers, "1", "endpoints that one owner has, 1 to 8");
DEFINE_int32(slots, 4, "slots of a lane, each way: messages that may be on their way, 1 to 32");
DEFINE_int32(runs, 7, "alternating runs");
DEFINE_double(run_ms, 60, "about how long a run is");
DEFINE_string(listen, "", "HOST:PORT where this process awaits the one that measures, and is its other end");
DEFINE_string(connect, "", "HOST:PORT of the process that listens, to measure with");

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

bool TwoHosts() { return !FLAGS_connect.empty(); }

void PrintCalls(const char* name, const Tally& tally) {
  if (tally.post_send == 0) return;
  std::printf(", \"%s\": {\"post_send\": %.3f, \"writes\": %.3f, \"post_recv\": %.3f, \"req_notify\": %.3f}", name,
              tally.post_send / tally.messages, tally.writes / tally.messages, tally.post_recv / tally.messages,
              tally.notify / tally.messages);
}

struct Line {
  const char* test;
  const char* unit;
  Spread ours, limit;
  std::string limit_name;
};

void Print(const Kind& kind, const Work& work, const Line& line, const Rig& rig) {
  std::printf(
      "{\"name\": \"transport\", \"case\": {\"kind\": \"%s\", \"test\": \"%s\", \"bytes\": %zu, \"peers\": %d, "
      "\"slots\": %d, "
      "\"waiting\": \"%s\", \"hosts\": %d, \"cpus\": %d}, \"unit\": \"%s\", \"median\": %.4g, \"min\": %.4g, \"max\": "
      "%.4g, \"limit\": {\"what\": \"%s\", \"median\": %.4g, \"min\": %.4g, \"max\": %.4g}, \"ratio\": %.3f, "
      "\"messages\": %.0f, \"allocations_a_message\": %.4g",
      kind.name().c_str(), line.test, work.bytes, work.peers, work.slots, NameOf(work.waiting), TwoHosts() ? 2 : 1,
      TwoCpus() ? 2 : 1, line.unit, line.ours.median(), line.ours.min(), line.ours.max(), line.limit_name.c_str(),
      line.limit.median(), line.limit.min(), line.limit.max(), line.ours.median() / line.limit.median(),
      rig.ours().messages, rig.ours().allocations / rig.ours().messages);
  PrintCalls("calls_a_message", rig.ours());
  PrintCalls("limit_calls_a_message", rig.bare());
  std::printf("}\n");
  std::fflush(stdout);
}

// So many that a run takes about run_ms.
int CountFor(double ns_each) {
  return static_cast<int>(std::clamp(FLAGS_run_ms * 1e6 / std::max(ns_each, 1.0), 8.0, 200'000.0));
}

void RoundTrip(const Kind& kind, const Work& work, Rig& rig) {
  const int count = CountFor(Quantile(rig.RoundTrips(8), 0.5));
  const std::string limit = kind.round_trip_limit(work.waiting);
  Line p50{"round_trip_p50", "us", {}, {}, limit}, p99{"round_trip_p99", "us", {}, {}, limit};
  for (int run = 0; run < FLAGS_runs; ++run) {
    const std::vector<int64_t> mine = rig.RoundTrips(count);
    const std::vector<int64_t> bare = rig.BareRoundTrips(count);
    for (auto [line, share] : {std::pair(&p50, 0.5), std::pair(&p99, 0.99)}) {
      line->ours.runs.push_back(Quantile(mine, share) * 1e-3);
      line->limit.runs.push_back(Quantile(bare, share) * 1e-3);
    }
  }
  Print(kind, work, p50, rig);
  Print(kind, work, p99, rig);
}

void Bandwidth(const Kind& kind, const Work& work, Rig& rig) {
  const int count = CountFor(static_cast<double>(rig.Stream(64)) / 64);
  const int bare_peers = kind.bare_has_peers() ? work.peers : 1;
  Line line{"bandwidth", "GB/s", {}, {}, kind.bandwidth_limit()};
  for (int run = 0; run < FLAGS_runs; ++run) {
    const double bytes = static_cast<double>(work.bytes) * count;
    line.ours.runs.push_back(bytes * work.peers / static_cast<double>(rig.Stream(count)));
    line.limit.runs.push_back(bytes * bare_peers / static_cast<double>(rig.BareStream(count)));
  }
  Print(kind, work, line, rig);
}

void MeasureKind(const std::vector<std::unique_ptr<Kind>>& kinds, size_t which, const Channel& channel) {
  const auto tests = Split(FLAGS_tests), waits = Split(FLAGS_waiting);
  const Kind& kind = *kinds[which];
  for (const std::string& peers : Split(FLAGS_peers)) {
    for (const std::string& bytes : Split(FLAGS_bytes)) {
      for (Waiting waiting : {Waiting::kSpin, Waiting::kSleep}) {
        if (!Has(waits, NameOf(waiting))) continue;
        Work work;
        work.bytes = std::stoul(bytes);
        work.peers = std::stoi(peers);
        work.slots = FLAGS_slots;
        work.waiting = waiting;
        struct Test {
          const char* name;
          void (*measure)(const Kind&, const Work&, Rig&);
        };
        for (const Test& test : {Test{"round_trip", RoundTrip}, Test{"bandwidth", Bandwidth}}) {
          if (!Has(tests, test.name)) continue;
          Rig rig(kinds, which, work, channel);
          test.measure(kind, work, rig);
        }
      }
    }
  }
}

void MeasureAll(const std::vector<std::unique_ptr<Kind>>& kinds, const Channel& channel) {
  const auto wanted = Split(FLAGS_kinds);
  for (size_t i = 0; i < kinds.size(); ++i) {
    if (!Has(wanted, kinds[i]->name())) continue;
    if (const Status status = kinds[i]->Available(TwoHosts()); status.ok()) {
      MeasureKind(kinds, i, channel);
    } else {
      std::fprintf(stderr, "bench_transport: not %s: %s\n", kinds[i]->name().c_str(), status.message().c_str());
    }
  }
}

// A list of numbers, each in a range, or of known words: what is wrong with it, or nothing.
std::string WrongIn(const char* flag, const std::string& text, long low, long high,
                    const std::vector<std::string>& words = {}) {
  const auto all = Split(text);
  for (const std::string& one : all) {
    char* end = nullptr;
    const long number = std::strtol(one.c_str(), &end, 10);
    const bool good = words.empty() ? !one.empty() && *end == '\0' && number >= low && number <= high : Has(words, one);
    if (good) continue;
    std::string expected = std::to_string(low) + " to " + std::to_string(high);
    if (!words.empty()) {
      expected = words[0];
      for (size_t i = 1; i < words.size(); ++i) expected += ", " + words[i];
    }
    return std::string("--") + flag + ": found \"" + one + "\", expected " + expected;
  }
  return all.empty() ? std::string("--") + flag + " is empty" : "";
}

std::string WrongFlags() {
  const std::string found[] = {
      WrongIn("kinds", FLAGS_kinds, 0, 0, {"shm", "tcp", "verbs"}),
      WrongIn("tests", FLAGS_tests, 0, 0, {"round_trip", "bandwidth"}),
      WrongIn("waiting", FLAGS_waiting, 0, 0, {"spin", "sleep"}),
      WrongIn("bytes", FLAGS_bytes, sizeof(MessageHeader), 1 << 30),
      WrongIn("peers", FLAGS_peers, 1, 8),
      WrongIn("slots", std::to_string(FLAGS_slots), 1, 32),
      WrongIn("runs", std::to_string(FLAGS_runs), 1, 10'000),
      FLAGS_run_ms > 0 && FLAGS_run_ms <= 600'000 ? "" : "--run_ms: expected more than 0, at most 600000",
  };
  for (const std::string& wrong : found) {
    if (!wrong.empty()) return wrong;
  }
  return "";
}

int Main() {
  if (const std::string wrong = WrongFlags(); !wrong.empty()) {
    std::fprintf(stderr, "bench_transport: %s\n", wrong.c_str());
    return 2;
  }
  const auto kinds = AllKinds();
  if (FLAGS_listen.empty()) PinNear();
  if (!FLAGS_listen.empty()) {
    PinFar();
    ServeFar(kinds, Channel::Listen(ParseHostPort(FLAGS_listen).value()));
  } else if (!FLAGS_connect.empty()) {
    MeasureAll(kinds, Channel::Dial(ParseHostPort(FLAGS_connect).value()));
  } else {
    auto [near, far] = Channel::Pair();
    std::thread other([&kinds, channel = std::move(far)] {
      PinFar();
      ServeFar(kinds, channel);
    });
    {
      const Channel channel = std::move(near);
      MeasureAll(kinds, channel);
    }
    other.join();
  }
  return 0;
}

}  // namespace
}  // namespace fastdecode::bench

int main(int argc, char** argv) {
  const fastdecode::ProgramText text{"bench_transport",
                                     "Measures round trips and bandwidth of the transports, each beside its limit;\n"
                                     "prints a JSON object a line. On two hosts: --listen on one, --connect on the\n"
                                     "other, which measures. Exit status: 0 done, 2 usage."};
  if (const std::optional<int> status = fastdecode::ParseFlags(text, &argc, &argv)) return *status;
  fastdecode::InitLogging(argv[0]);
  return fastdecode::bench::Main();
}
