#include "rworker/workload_meter.h"

#include <algorithm>

namespace fastdecode::rworker {
namespace {

uint64_t Tokens(const StepRow& row) { return uint64_t{row.position} + 1; }

}  // namespace

WorkloadMeter::WorkloadMeter(int mini_batches, int max_rows) : rows_(static_cast<size_t>(mini_batches)) {
  for (auto& rows : rows_) rows.reserve(static_cast<size_t>(max_rows));
}

void WorkloadMeter::BeginStep(int mini_batch, std::span<const StepRow> rows) {
  std::vector<StepRow>& current = rows_[static_cast<size_t>(mini_batch)];
  for (const StepRow& row : current) now_ -= Tokens(row);
  current.assign(rows.begin(), rows.end());
  for (const StepRow& row : current) now_ += Tokens(row);
  peak_ = std::max(peak_, now_);
}

void WorkloadMeter::Free(uint64_t sequence) {
  for (std::vector<StepRow>& rows : rows_) {
    auto found = std::find_if(rows.begin(), rows.end(), [&](const StepRow& row) { return row.sequence == sequence; });
    if (found == rows.end()) continue;
    now_ -= Tokens(*found);
    *found = rows.back();
    rows.pop_back();
  }
}

}  // namespace fastdecode::rworker
