// The S/R seam without a network: the R-worker's own AttentionService in this process,
// one for each R-worker. Events come when Poll is called, in an order and with delays
// that a seed decides; an R-worker may be lost at a chosen moment.
#pragma once

#include <deque>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "kernels/dispatch.h"
#include "rworker/attention_service.h"
#include "rworker/compute_pool.h"
#include "rworker/pool_memory.h"
#include "sworker/attention/backend.h"
#include "sworker/rworkers/session_options.h"

namespace fastdecode {

class LocalAttention final : public AttentionBackend {
 public:
  LocalAttention(const SessionOptions& session, int num_rworkers, size_t kv_bytes, uint64_t seed);

  void Lose(int rworker);
  rworker::KvStats kv_stats(int rworker) const { return peers_[static_cast<size_t>(rworker)].service->stats(); }

  Status BeginPass(int mini_batch, uint64_t step, std::span<const StepRow> rows,
                   std::span<const RowSlice> slices) override;
  void Idle(int mini_batch) override;
  Result<std::span<const HostRows>> AcquireQkv(int mini_batch) override;
  Status SubmitQkv(int mini_batch, int layer) override;
  void ReleaseO(int) override {}
  int max_push_rows() const override { return kPushRows; }
  Result<HostRows> AcquireKv(int rworker) override;
  Status SubmitKv(const HostRows& piece, SequenceId sequence, int layer, int position, int rows) override;
  Status FinishPrefill(int rworker, SequenceId sequence, int tokens) override;
  void Free(int rworker, SequenceId sequence) override;
  std::span<const int64_t> workload() const override { return workload_; }
  std::span<const int64_t> compute_ns() const override { return compute_ns_; }
  uint64_t wire_bytes() const override { return 0; }
  std::optional<AttentionEvent> Poll() override;
  bool PrepareWait(std::vector<int>*) override { return !std::exchange(refused_, false) && events_.empty(); }

 private:
  static constexpr int kPushRows = 7;  // small and odd: many pieces
  static constexpr size_t kPieces = 3;
  struct Peer {
    std::unique_ptr<rworker::PoolMemory> memory;
    std::unique_ptr<rworker::AttentionService> service;
    std::vector<int64_t> pair_workload;
    bool lost = false;
  };
  struct Slice {
    RowSlice range;
    bool lost = false;
    std::vector<std::byte> qkv = {}, o = {};
  };
  struct Pass {
    uint64_t step = 0;
    std::vector<Slice> slices;
    std::vector<HostRows> qkv, o;
    AttendedInfo info;
  };

  bool Refuse() { return random_() % 4 == 0 && (refused_ = true); }
  Peer& peer(int rworker) { return peers_[static_cast<size_t>(rworker)]; }

  AttentionShape shape_;
  rworker::ComputePool pool_{1, /*pin=*/false};
  std::vector<Peer> peers_;
  std::vector<Pass> passes_;
  std::vector<std::vector<std::byte>> pieces_;
  std::vector<bool> piece_used_;
  std::vector<int64_t> workload_, compute_ns_;
  std::vector<AttentionEvent> events_;
  std::mt19937_64 random_;
  bool refused_ = false;  // a call was told to come again: nobody sleeps
};

}  // namespace fastdecode
