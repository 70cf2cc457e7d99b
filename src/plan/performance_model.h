// How fast a deployment will decode, how large its batch should be, and how many
// R-workers it needs: FastDecode's performance model (arXiv 2403.11421, section 4.3),
// with what it leaves out: the layers' ends, copies, wire, latency, prefill.
//
// Symbols as in the paper: B sequences of one mini-batch, N layers, S tokens of a
// sequence at its end, T(B) seconds of one layer's S-part, R seconds of one layer's R-part
// a cached token, P R-workers (sockets), E(B) = B / T(B), W cached tokens that are read.
// Pure and deterministic: values in, values out.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/config/model_config.h"
#include "plan/pipeline.h"
#include "plan/profile.h"

namespace fastdecode::plan {

// What is to be decoded, and with how much of what the profile describes.
struct Deployment {
  int layers = 0;
  int mini_batches = 2;
  int rworkers = 1;  // the profile's, in turns where it has fewer
  int batch = 0;     // sequences in flight, over all mini-batches
  double prompt_tokens = 0;
  double output_tokens = 0;            // S = prompt + output
  int prefill_tokens_per_step = 4096;  // of all prompts that are prefilled together
};

// One step: a pass of every mini-batch.
struct StepPrediction {
  double step_s = 0;
  double tokens_per_s = 0;
  double device_busy_s = 0;   // S-part, copies, head, sampling
  double rworker_busy_s = 0;  // of the busiest R-worker
  double link_busy_s = 0;     // of the S-worker's link, in the direction that is taken longer
  double stages_s = 0;        // device_busy_s without what serving and prefill take
  double kernels_s = 0;       // rworker_busy_s without receiving and sending
  double layer_s = 0;         // T(B) of the largest mini-batch
  double attend_s = 0;        // the slowest R-worker's R-part of one layer and mini-batch, in its kernels
  double wire_s = 0;          // of one layer and mini-batch
  double copy_s = 0;          // the same
  double workload = 0;        // W of the fullest R-worker, over all mini-batches
  std::string bound;          // "S-part", "R-part", "link" or "latency"
};

// A step with `cached` tokens a sequence; serving included.
StepPrediction PredictStep(const ModelProfile& profile, const Deployment& deployment, double cached);

// Decoding of a batch that starts and ends together (no prefill): means over the steps in
// which the sequences grow from prompt to prompt + output tokens.
StepPrediction PredictDecode(const ModelProfile& profile, const Deployment& deployment);

// A batch of prompts prefilled on the device, with nothing beside it; `tokens`: of all together.
double PrefillSeconds(const ModelProfile& profile, int layers, double tokens);

// The long run with sequences of all ages: mean W, and the device's prefill of those that
// follow the ones that end.
struct SteadyPrediction {
  StepPrediction step;           // step_s and tokens_per_s with prefill
  double prefill_s = 0;          // a step, on the device
  double prefill_latency_s = 0;  // of one prompt
  double sequence_s = 0;         // from prefill to last token
};
SteadyPrediction PredictSteady(const ModelProfile& profile, const Deployment& deployment);

// E(B) in sequences a second through one layer.
double Efficiency(const ModelProfile& profile, double rows);

// The paper's B: the largest with mini_batches * N * g * T(B) <= latency_s less a prompt's own prefill, for g
// output tokens (the paper's S: its prompts have one token); 0 if not even 1.
int BatchForLatency(const ModelProfile& profile, const Deployment& deployment, double latency_s, int max_rows);
// Else the knee of E(B): the smallest power of two whose double adds less than
// `gain` to it, at most max_rows.
int KneeOfEfficiency(const ModelProfile& profile, int max_rows, double gain = 0.15);

// The paper's P = B * mean W a sequence * R / T(B), not rounded: both sides equally busy.
// (The paper's B S R / (2 T(B)) without prompts.) R of the profile's slowest R-worker.
double BalancedRWorkers(const ModelProfile& profile, const Deployment& deployment);

// The W of one R-worker, over all mini-batches, at which its time equals the device's: with
// nothing but S- and R-part, at which W * R = T(B) in each mini-batch. Copies, head, prefill
// and what an R-worker spends on receiving and sending count.
int64_t WorkloadLimit(const ModelProfile& profile, const Deployment& deployment);
// Steps between two injections such that the peak of an R-worker with B sequences, B (p + (g + F) / 2)
// for p prompt and g output tokens, is `limit`: 1 ... g. Without prompts it is the paper's B (S + F) / 2.
int InjectionInterval(const Deployment& deployment, int64_t limit);

struct MemoryNeeds {
  int64_t weights = 0;      // of the S-worker's device
  int64_t activations = 0;  // rows of decoding and of prefill, logits
  int64_t runtime = 0;      // what the device's own libraries take
  int64_t kv_of_rworker = 0;
  int64_t device() const { return weights + activations + runtime; }
};
struct MemoryOptions {
  int block_tokens = 128;
  bool tied_embeddings = false;
};
MemoryNeeds NeededMemory(const ModelKey& key, const Deployment& deployment, const MemoryOptions& options);

// The R-part of one layer of one mini-batch on this R-worker: `rows` sequences with `tokens`
// cached tokens in all. As measured where it was, else by the line.
double AttendSeconds(const RWorkerProfile& rworker, double rows, double tokens);

// One exchange of `rows` rows with this R-worker, apart from its kernels: wire.At of their bytes is the sum.
struct WireTimes {
  double latency = 0;      // both ways
  double out = 0, in = 0;  // the S-worker's link is taken by Q, K, V and by O
  double total() const { return latency + out + in; }
};
WireTimes WireTimesOf(const ModelProfile& profile, const RWorkerProfile& rworker, double rows);
// The profile's R-workers, in turns where it has fewer.
const RWorkerProfile& RWorkerOf(const ModelProfile& profile, int index);
// What a layer's S-part has done when Q, K and V are made, as a share: by parameters.
double ShareBeforeAttention(const ModelKey& key);

// Of the shape, for those who count: parameters of one layer, bytes of an element.
int64_t LayerParameters(const ModelKey& key);
int DtypeBytes(const std::string& dtype);
int64_t KvTokenBytes(const ModelKey& key);  // one layer
// Bytes of one layer's exchange, both ways.
double WireBytes(const ModelKey& key, double rows);

}  // namespace fastdecode::plan
