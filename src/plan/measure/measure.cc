#include "plan/measure/measure.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "common/base/clock.h"
#include "plan/fit.h"
#include "plan/measure/lab.h"
#include "plan/measure/serving_probe.h"
#include "plan/performance_model.h"

namespace fastdecode::plan {
namespace {

constexpr int kGrowth = 48;  // tokens that a run's sequences may grow by
constexpr int kShortContext = 16;
constexpr int kLivePrompt = 1;
// Everything is measured in turns, a few times: what disturbs the machine for some seconds then moves one of
// the values that a median is taken of, and not a whole point.
constexpr int kRounds = 3;

double SecondsSince(int64_t start_ns) { return static_cast<double>(NowNs() - start_ns) / 1e9; }

TimePoint PointOf(double at, const std::vector<double>& seconds) {
  constexpr double kMaxSpread = 100;  // of what is next to nothing
  return {at, Median(seconds), std::min(Spread(seconds), kMaxSpread)};
}

Curve CurveOf(const std::map<int, std::vector<double>>& samples) {
  std::vector<TimePoint> points;
  for (const auto& [at, seconds] : samples) points.push_back(PointOf(at, seconds));
  return Curve(std::move(points));
}

// 1, 2, 4 ... and the largest.
std::vector<int> RowsToMeasure(int max_rows) {
  std::vector<int> rows;
  for (int n = 1; n < max_rows; n *= 2) rows.push_back(n);
  rows.push_back(max_rows);
  return rows;
}

// What the rounds have found on one R-worker, by rows of a mini-batch.
struct RWorkerSamples {
  struct Attended {
    double tokens = 0;  // cached, of all rows
    std::vector<double> seconds;
  };
  std::map<int, std::map<int, Attended>> attended;  // also by context
  std::map<int, std::vector<double>> exchanged;
};

class Measurement {
 public:
  Measurement(Lab& lab, const MeasureOptions& options) : lab_(lab), options_(options), start_ns_(NowNs()) {}

  Result<ModelProfile> Run() {
    const Config& config = lab_.config();
    profile_.name = std::filesystem::path(config.model.path).filename().string();
    profile_.key = KeyOf(config);
    profile_.key.transport = Transports();
    profile_.mini_batches = config.pipeline.mini_batches;
    FD_RETURN_IF_ERROR(Decode());
    FD_RETURN_IF_ERROR(Prefill());
    FD_RETURN_IF_ERROR(Serving());
    return std::move(profile_);
  }

 private:
  void Say(const std::string& line) const {
    if (options_.progress) options_.progress(line);
  }

  // What was negotiated.
  std::string Transports() const {
    std::set<std::string> kinds;
    for (size_t r = 0; r < lab_.config().rworkers.hosts.size(); ++r) {
      kinds.insert(NameOf(lab_.grant(static_cast<int>(r)).transport));
    }
    return TransportsText(kinds);
  }

  // Tokens that `rows` sequences a mini-batch may have when a run starts: what R-worker r holds.
  int LongestContext(int r, int mini_batches, int rows) const {
    const int64_t blocks = lab_.grant(r).kv_blocks / (int64_t{mini_batches} * rows);
    const int64_t fits = blocks * lab_.config().rworkers.block_tokens;
    return static_cast<int>(std::min<int64_t>(fits, lab_.config().max_context)) - kGrowth - 1;
  }

  double Spent() const { return SecondsSince(start_ns_) / options_.seconds; }

  // Few and long, or many and short: some tenths of a second.
  int PassesFor(int rows, double guess_s) const {
    const double spent = Spent();
    const double target = spent > 0.7 ? 0.15 : 0.4;
    return std::clamp(static_cast<int>(target / std::max(guess_s * rows, 1e-6)), spent > 1 ? 4 : 6, kGrowth);
  }

  Status Decode() {
    const auto rworkers = static_cast<int>(lab_.config().rworkers.hosts.size());
    for (int r = 0; r < rworkers; ++r) {
      FD_RETURN_IF_ERROR(DecodeOn(r));
    }
    profile_.layer = CurveOf(layer_);
    profile_.copy_in = CurveOf(copy_in_);
    profile_.copy_out = CurveOf(copy_out_);
    profile_.outer = CurveOf(outer_);
    return OkStatus();
  }

  Status DecodeOn(int r) {
    RWorkerSamples found;
    const double half = 0.5 * (r + 1) / static_cast<double>(lab_.config().rworkers.hosts.size());
    for (int round = 0; round < kRounds && (round == 0 || Spent() < half); ++round) {
      for (const int rows : RowsToMeasure(lab_.max_rows())) {
        FD_RETURN_IF_ERROR(Exchange(r, rows, &found));
        FD_RETURN_IF_ERROR(Together(r, rows, &found));
      }
    }
    const RWorkerGrant& grant = lab_.grant(r);
    if (found.attended.empty()) {
      return InvalidArgument("R-worker " + grant.address + " holds too few KV blocks for one sequence a mini-batch");
    }
    AddRWorker(grant, found);
    const RPartTimes& attend = profile_.rworkers.back().attend;
    char line[200];
    std::snprintf(line, sizeof(line), "%s: R = %.4g us a cached token, %.3g us a row, %.3g us a call, within %.0f %%",
                  grant.address.c_str(), attend.seconds_per_token * 1e6, attend.seconds_per_row * 1e6,
                  attend.seconds_per_call * 1e6, attend.spread * 100);
    Say(line);
    return OkStatus();
  }

  void AddRWorker(const RWorkerGrant& grant, const RWorkerSamples& found) {
    std::vector<AttendSample> samples;
    std::vector<AttendCurve> curves;
    for (const auto& [rows, by_context] : found.attended) {
      std::vector<TimePoint> points;
      for (const auto& [context, attended] : by_context) {
        samples.push_back({static_cast<double>(rows), attended.tokens, Median(attended.seconds)});
        points.push_back(PointOf(attended.tokens / rows, attended.seconds));
      }
      curves.push_back({static_cast<double>(rows), Curve(std::move(points))});
    }
    std::vector<TimePoint> wire;
    for (const auto& [rows, seconds] : found.exchanged) {
      wire.push_back(PointOf(WireBytes(profile_.key, rows), seconds));
    }
    profile_.rworkers.push_back({.address = grant.address,
                                 .kernel = grant.kernel,
                                 .threads = grant.threads,
                                 .attend = FitRPart(samples),
                                 .attended = std::move(curves),
                                 .wire = Curve(std::move(wire))});
  }

  // One mini-batch alone: what lies between its stages is the wire.
  Status Exchange(int r, int rows, RWorkerSamples* found) {
    const int context = std::min(kShortContext, LongestContext(r, 1, rows));
    if (context < 1) return OkStatus();
    FD_ASSIGN_OR_RETURN(const PassRecord run, lab_.RunPasses(r, 1, rows, context, PassesFor(rows, row_s_)));
    Add(run.wire, &found->exchanged[rows]);
    return OkStatus();
  }

  // All mini-batches at the same time, as in service, with short and with long contexts.
  Status Together(int r, int rows, RWorkerSamples* found) {
    const int k = profile_.mini_batches;
    const int longest = LongestContext(r, k, rows);
    if (longest < 1) {
      Say(std::to_string(rows) + " rows: left out, R-worker " + lab_.grant(r).address +
          " holds too few KV blocks for them");
      return OkStatus();
    }
    std::vector<int> contexts{std::min(kShortContext, longest)};
    for (const double share : {0.25, 1.0}) {
      const int context = static_cast<int>(share * longest);
      if (context > 2 * contexts.back()) contexts.push_back(context);
    }
    for (const int context : contexts) {
      FD_ASSIGN_OR_RETURN(const PassRecord run, lab_.RunPasses(r, k, rows, context, PassesFor(k * rows, row_s_)));
      RWorkerSamples::Attended& attended = found->attended[rows][context];
      Add(run.attend, &attended.seconds);
      const double share = static_cast<double>(run.attend.size()) / static_cast<double>(attended.seconds.size());
      attended.tokens += share * (run.tokens - attended.tokens);
      Add(run.layer.empty() ? run.outer : run.layer, &layer_[rows]);
      Add(run.copy_in, &copy_in_[rows]);
      Add(run.copy_out, &copy_out_[rows]);
      Add(run.outer, &outer_[rows]);
      row_s_ = Median(run.pass) / rows;
      char line[200];
      std::snprintf(line, sizeof(line),
                    "%4d rows of %5.0f tokens: T %8.3f ms, head %8.3f ms, copies %7.3f ms, R-part %8.3f ms", rows,
                    run.tokens / rows, Median(layer_[rows]) * 1e3, Median(outer_[rows]) * 1e3,
                    (Median(copy_in_[rows]) + Median(copy_out_[rows])) * 1e3, Median(attended.seconds) * 1e3);
      Say(line);
    }
    return OkStatus();
  }

  static void Add(const std::vector<double>& values, std::vector<double>* all) {
    all->insert(all->end(), values.begin(), values.end());
  }

  Status Prefill() {
    std::vector<TimePoint> layer, outer;
    // Up to a whole step's, unless the next ones would take long.
    const int longest = std::min(
        {lab_.config().pipeline.prefill_tokens_per_step, lab_.config().max_context - 1, LongestContext(0, 1, 1)});
    double took_s = 0;
    for (int tokens = std::min(16, longest); tokens > 0 && tokens <= longest && 4 * took_s < 0.1 * options_.seconds;
         tokens *= 4) {
      std::vector<double> layers, outers;
      const int64_t start_ns = NowNs();
      while (layers.size() < 5 && (layers.size() < 3 || SecondsSince(start_ns) < 2)) {
        FD_ASSIGN_OR_RETURN(const PrefillRecord run, lab_.RunPrefill(0, 1, tokens));
        layers.push_back(run.layer);
        outers.push_back(run.outer);
      }
      took_s = SecondsSince(start_ns);
      layer.push_back(PointOf(tokens, layers));
      outer.push_back(PointOf(tokens, outers));
      Say("prefill of " + std::to_string(tokens) + " tokens: " + std::to_string(layer.back().seconds * 1e3) +
          " ms a layer");
    }
    profile_.prefill = Curve(std::move(layer));
    profile_.prefill_outer = Curve(std::move(outer));
    return OkStatus();
  }

  // A live step less what the parts explain, shared out over its passes.
  Status Serving() {
    FD_ASSIGN_OR_RETURN(const std::unique_ptr<ServingProbe> probe, ServingProbe::Make(lab_, options_.client_cpus));
    std::map<int, std::vector<double>> extra, passes;
    for (int round = 0; round < kRounds && (round == 0 || Spent() < 2); ++round) {
      for (const int rows : RowsToMeasure(lab_.max_rows())) {
        FD_RETURN_IF_ERROR(ServeLive(*probe, rows, &extra[rows], &passes[rows]));
      }
    }
    std::vector<ServingSample> samples;
    for (const auto& [rows, seconds] : extra) {
      samples.push_back({static_cast<double>(rows), Median(seconds), Median(passes[rows])});
    }
    profile_.serving = FitServing(samples);
    return OkStatus();
  }

  Status ServeLive(ServingProbe& probe, int rows, std::vector<double>* extra, std::vector<double>* passes) {
    const int k = profile_.mini_batches;
    const int batch = rows * k;
    const int steps = std::clamp(static_cast<int>(2.0 / (row_s_ * batch)), 16, 256);
    const int output = std::min(steps, lab_.config().max_context - kLivePrompt);
    FD_ASSIGN_OR_RETURN(const LiveRun run, probe.Run(batch, kLivePrompt, output));
    const Deployment deployment{.layers = lab_.config().model.layers,
                                .mini_batches = k,
                                .rworkers = static_cast<int>(profile_.rworkers.size()),
                                .batch = batch,
                                .output_tokens = 1};
    const double predicted = PredictStep(profile_, deployment, run.tokens).step_s;
    extra->push_back((run.step_s - predicted) / k);
    passes->push_back(run.step_s / k);
    char line[160];
    std::snprintf(line, sizeof(line), "live, batch %4d: a step takes %.3f ms, its parts explain %.3f ms", batch,
                  run.step_s * 1e3, predicted * 1e3);
    Say(line);
    return OkStatus();
  }

  Lab& lab_;
  const MeasureOptions& options_;
  const int64_t start_ns_;
  ModelProfile profile_;
  double row_s_ = 1e-3;  // of a pass, a row: a guess from what ran last
  std::map<int, std::vector<double>> layer_, copy_in_, copy_out_, outer_;
};

}  // namespace

Result<ModelProfile> MeasureModel(const Config& config, const MeasureOptions& options, const std::atomic<int>& stop) {
  if (config.model.layers < 2) {
    return InvalidArgument(
        "model.layers: found 1; expected at least 2, since a layer's S-part lies between two R-parts");
  }
  FD_ASSIGN_OR_RETURN(const std::unique_ptr<Lab> lab, Lab::Make(config, stop));
  if (options.progress) options.progress(config.model.path + " on " + lab->device_description());
  return Measurement(*lab, options).Run();
}

std::string LibtorchVersion() { return FASTDECODE_LIBTORCH_VERSION; }

}  // namespace fastdecode::plan
