#include "plan/measure/measure.h"

#include <algorithm>
#include <cmath>
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

  // Few and long, or many and short: about half a second.
  int PassesFor(int rows, double guess_s) const {
    const double spent = SecondsSince(start_ns_) / options_.seconds;
    const double target = spent > 0.7 ? 0.15 : 0.6;
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
    std::vector<AttendSample> samples;
    std::vector<TimePoint> wire;
    for (const int rows : RowsToMeasure(lab_.max_rows())) {
      FD_RETURN_IF_ERROR(Exchange(r, rows, &wire));
      FD_RETURN_IF_ERROR(Together(r, rows, &samples));
    }
    const RWorkerGrant& grant = lab_.grant(r);
    if (samples.empty()) {
      return InvalidArgument("R-worker " + grant.address + " holds too few KV blocks for one sequence a mini-batch");
    }
    profile_.rworkers.push_back({.address = grant.address,
                                 .kernel = grant.kernel,
                                 .threads = grant.threads,
                                 .attend = FitRPart(samples),
                                 .attended = std::exchange(attended_, {}),
                                 .wire = Curve(std::move(wire))});
    const RPartTimes& attend = profile_.rworkers.back().attend;
    char line[200];
    std::snprintf(line, sizeof(line), "%s: R = %.4g us a cached token, %.3g us a row, %.3g us a call, within %.0f %%",
                  grant.address.c_str(), attend.seconds_per_token * 1e6, attend.seconds_per_row * 1e6,
                  attend.seconds_per_call * 1e6, attend.spread * 100);
    Say(line);
    return OkStatus();
  }

  // One mini-batch alone: what lies between its stages is the wire.
  Status Exchange(int r, int rows, std::vector<TimePoint>* wire) {
    const int context = std::min(kShortContext, LongestContext(r, 1, rows));
    if (context < 1) return OkStatus();
    FD_ASSIGN_OR_RETURN(const PassRecord run, lab_.RunPasses(r, 1, rows, context, PassesFor(rows, row_s_)));
    wire->push_back(PointOf(WireBytes(profile_.key, rows), run.wire));
    return OkStatus();
  }

  // All mini-batches at the same time, as in service, with short and with long contexts.
  Status Together(int r, int rows, std::vector<AttendSample>* samples) {
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
    std::vector<TimePoint> by_cached;
    for (const int context : contexts) {
      FD_ASSIGN_OR_RETURN(const PassRecord run, lab_.RunPasses(r, k, rows, context, PassesFor(k * rows, row_s_)));
      samples->push_back({static_cast<double>(rows), run.tokens, Median(run.attend)});
      by_cached.push_back(PointOf(run.tokens / rows, run.attend));
      const auto add = [rows](std::map<int, std::vector<double>>& to, const std::vector<double>& values) {
        std::vector<double>& all = to[rows];
        all.insert(all.end(), values.begin(), values.end());
      };
      add(layer_, run.layer.empty() ? run.outer : run.layer);
      add(copy_in_, run.copy_in);
      add(copy_out_, run.copy_out);
      add(outer_, run.outer);
      row_s_ = Median(run.pass) / rows;
      char line[200];
      std::snprintf(line, sizeof(line),
                    "%4d rows of %5.0f tokens: T %8.3f ms, head %8.3f ms, copies %7.3f ms, R-part %8.3f ms", rows,
                    run.tokens / rows, Median(layer_[rows]) * 1e3, Median(run.outer) * 1e3,
                    (Median(copy_in_[rows]) + Median(copy_out_[rows])) * 1e3, Median(run.attend) * 1e3);
      Say(line);
    }
    attended_.push_back({static_cast<double>(rows), Curve(std::move(by_cached))});
    return OkStatus();
  }

  Status Prefill() {
    std::vector<TimePoint> layer, outer;
    const int longest = std::min({256, lab_.config().max_context - 1, LongestContext(0, 1, 1)});
    for (int tokens = std::min(16, longest); tokens > 0 && tokens <= longest; tokens *= 4) {
      std::vector<double> layers, outers;
      const int64_t start_ns = NowNs();
      while (layers.size() < 5 && (layers.size() < 3 || SecondsSince(start_ns) < 2)) {
        FD_ASSIGN_OR_RETURN(const PrefillRecord run, lab_.RunPrefill(0, 1, tokens));
        layers.push_back(run.layer);
        outers.push_back(run.outer);
      }
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
    ServingProbe probe(lab_);
    const int k = profile_.mini_batches;
    const auto rworkers = static_cast<int>(profile_.rworkers.size());
    std::vector<TimePoint> points;
    for (const int rows : RowsToMeasure(lab_.max_rows())) {
      const int batch = rows * k;
      const int steps = std::clamp(static_cast<int>(2.0 / (row_s_ * batch)), 16, 64);
      const int output = std::min(steps, lab_.config().max_context - kLivePrompt);
      if (rows > 1 && rows < lab_.max_rows() && std::log2(rows) != std::floor(std::log2(rows))) continue;
      std::vector<double> extra;
      LiveRun last;
      double predicted = 0;
      for (int i = 0; i < 3; ++i) {
        FD_ASSIGN_OR_RETURN(last, probe.Run(batch, kLivePrompt, output));
        const Deployment deployment{.layers = lab_.config().model.layers,
                                    .mini_batches = k,
                                    .rworkers = rworkers,
                                    .batch = batch,
                                    .output_tokens = 1};
        predicted = PredictStep(profile_, deployment, last.tokens).step_s;
        extra.push_back(std::max(1e-7, (last.step_s - predicted) / k));
        if (last.step_s * output > 5) break;
      }
      points.push_back(PointOf(rows, extra));
      char line[160];
      std::snprintf(line, sizeof(line), "live, batch %4d: a step takes %.3f ms, its parts explain %.3f ms", batch,
                    last.step_s * 1e3, predicted * 1e3);
      Say(line);
    }
    profile_.serving = Curve(std::move(points));
    return OkStatus();
  }

  Lab& lab_;
  const MeasureOptions& options_;
  const int64_t start_ns_;
  ModelProfile profile_;
  std::vector<AttendCurve> attended_;  // of the R-worker that is measured
  double row_s_ = 1e-3;                // of a pass, a row: a guess from what ran last
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
