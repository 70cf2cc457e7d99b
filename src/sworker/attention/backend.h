// The S/R seam: attention over KV that is kept elsewhere.
//
// The S-part writes a layer's rows into host memory that the backend provides (one
// run a slice: the transport's own slots, so that the device's copy is the only one),
// the backend carries them away, and later an event says that O is there, again in
// host memory of the backend's. RemoteAttention does it with R-workers;
// LocalAttention (tests/support) in the same process.
//
// Thread rule: one owner, the engine thread. Rows of lost R-workers are dropped, not
// waited for: their slice comes back with lost = true and no data.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "common/base/status.h"
#include "common/wire/messages.h"
#include "sworker/request.h"

namespace fastdecode {

// A contiguous run of a pass's rows that belongs to one R-worker.
struct RowSlice {
  int rworker = 0;
  int row_begin = 0;
  int rows = 0;
};

// Host memory for, or with, a slice's rows: f16, row-major, without padding.
struct HostRows {
  int rworker = 0;
  int row_begin = 0;
  int rows = 0;
  std::byte* data = nullptr;
  bool lost = false;  // data is null
};

// What the R-part says of one layer of one pass.
struct AttendedInfo {
  int64_t posted_ns = 0;
  int64_t arrived_ns = 0;  // the last slice's
  int64_t compute_ns = 0;  // the last slice's R-worker: in its kernels
  int64_t queue_ns = 0;    // the last slice's: behind other work of that R-worker
};

struct AttentionEvent {
  enum class Kind {
    kAttended,     // mini_batch's rows of the submitted layer are in `o` until ReleaseO
    kPrefillDone,  // sequence's K/V are complete on its R-worker
    kFreed,        // sequence's blocks are free
    kLost,         // rworker is gone: `reason`
  };
  Kind kind = Kind::kAttended;
  int mini_batch = 0;
  SequenceId sequence = 0;
  int rworker = 0;
  AttendedInfo info = {};
  std::span<const HostRows> o = {};
  Status reason = {};
};

class AttentionBackend {
 public:
  virtual ~AttentionBackend() = default;

  // Starts a pass of a mini-batch: what does not change from layer to layer.
  // rows are ordered as slices say. kWouldBlock: call again after Poll.
  virtual Status BeginPass(int mini_batch, uint64_t step, std::span<const StepRow> rows,
                           std::span<const RowSlice> slices) = 0;
  // No pass until the next BeginPass: what the last one read counts no longer.
  virtual void Idle(int mini_batch) = 0;
  // Memory for the QKV rows (layout: messages.h) of the next layer; kWouldBlock.
  virtual Result<std::span<const HostRows>> AcquireQkv(int mini_batch) = 0;
  // The rows are written: append, attend. Answered by kAttended.
  virtual Status SubmitQkv(int mini_batch, int layer) = 0;
  virtual void ReleaseO(int mini_batch) = 0;

  // Prefill's push, in pieces of at most max_push_rows. [K | V] rows, f16. A piece that
  // was acquired must be submitted. If the R-worker is gone: lost = true, nothing to do.
  virtual int max_push_rows() const = 0;
  virtual Result<HostRows> AcquireKv(int rworker) = 0;
  virtual Status SubmitKv(const HostRows& piece, SequenceId sequence, int layer, int position, int rows) = 0;
  // All pieces are submitted. Answered by kPrefillDone. kWouldBlock.
  virtual Status FinishPrefill(int rworker, SequenceId sequence, int tokens) = 0;
  // Answered by kFreed, at once if the R-worker is gone. Queued inside: never blocks.
  virtual void Free(int rworker, SequenceId sequence) = 0;

  // An R-worker's W: the summed context of its rows, over the last passes of all mini-batches
  // that are not idle; index: R-worker.
  virtual std::span<const int64_t> workload() const = 0;
  // An R-worker's time in its kernels since the start, as it reported.
  virtual std::span<const int64_t> compute_ns() const = 0;
  virtual uint64_t wire_bytes() const = 0;  // both ways, all R-workers, since the start

  // The next event, if there is one. Moves bytes.
  virtual std::optional<AttentionEvent> Poll() = 0;
  // File descriptors to sleep on, and whether one may (else Poll again first).
  virtual bool PrepareWait(std::vector<int>* fds) = 0;
};

}  // namespace fastdecode
