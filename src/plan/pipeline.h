// How k mini-batches share one device and the R-workers, played through event by event.
//
// The engine's own rules: the device runs one stage at a time, first ready first served; a
// mini-batch's stage l + 1 is ready when O of its layer l is back from every R-worker; an
// R-worker attends to one mini-batch at a time; the S-worker's link carries one R-worker's
// rows after another's, each way. Formulas such as max(k s, k r, s + r)
// leave out what the ends of a pass do (head, sampling), which few layers don't hide.
// Pure and deterministic.
#pragma once

#include <vector>

namespace fastdecode::plan {

// One pass of one mini-batch, seconds.
struct PassTimes {
  double first = 0;     // the device: embedding, and layer 0 up to its Q, K, V
  double middle = 0;    // the rest of a layer and the next one's Q, K, V: layers - 1 times
  double last = 0;      // the rest of the last layer
  double sampling = 0;  // head, sampling, and what else a pass costs the device
  struct Exchange {
    double there = 0;                  // rows on their way to the R-worker; the R-worker is free meanwhile
    double busy = 0;                   // the R-worker receives, computes, sends
    double back = 0;                   // O on its way
    double link_out = 0, link_in = 0;  // the S-worker's link is taken, by Q, K, V and by O
  };
  std::vector<Exchange> rworkers;  // of one layer; all wait for the slowest
};

struct PipelineResult {
  double step = 0;          // one pass of every mini-batch, steady state
  double device_busy = 0;   // of a step
  double rworker_busy = 0;  // of a step, the busiest R-worker
  double link_busy = 0;     // of a step, the S-worker's link in the direction that is taken longer
};

// layers >= 1, at least one mini-batch, all with the same number of R-workers.
PipelineResult RunPipeline(int layers, const std::vector<PassTimes>& mini_batches);

}  // namespace fastdecode::plan
