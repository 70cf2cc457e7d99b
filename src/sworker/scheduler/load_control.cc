#include "sworker/scheduler/load_control.h"

#include <algorithm>

#include "common/base/logging.h"

namespace fastdecode {

void LoadTracker::Advance(int64_t step) {
  CHECK_GE(step, step_);
  step_ = step;
  auto first = ends_.begin();
  while (first != ends_.end() && first->step < step_) ++first;
  if (first != ends_.begin()) peak_ = kUnknown;
  ends_.erase(ends_.begin(), first);
}

void LoadTracker::Add(const LoadEntry& entry) {
  CHECK_LE(entry.start, step_) << "peaks lie at ends only if all that is tracked has started";
  CHECK_GE(entry.end, step_);
  const int64_t offset = entry.tokens_at_start - entry.start;
  auto own = std::lower_bound(ends_.begin(), ends_.end(), entry.end,
                              [](const End& end, int64_t step) { return end.step < step; });
  if (own == ends_.end() || own->step != entry.end) {
    own = ends_.insert(own, End{.step = entry.end, .workload = At(entry.end)});
  }
  own->count += 1;
  own->offset += offset;
  peak_ = kUnknown;
  for (auto end = ends_.begin(); end <= own; ++end) end->workload += offset + end->step;
}

void LoadTracker::Remove(const LoadEntry& entry) {
  if (entry.end < step_) return;
  const int64_t offset = entry.tokens_at_start - entry.start;
  auto own = std::lower_bound(ends_.begin(), ends_.end(), entry.end,
                              [](const End& end, int64_t step) { return end.step < step; });
  CHECK(own != ends_.end() && own->step == entry.end) << "no entry ends at step " << entry.end;
  for (auto end = ends_.begin(); end <= own; ++end) end->workload -= offset + end->step;
  own->count -= 1;
  own->offset -= offset;
  peak_ = kUnknown;
  if (own->count == 0) ends_.erase(own);
}

int64_t LoadTracker::At(int64_t step) const {
  int64_t workload = 0;
  for (auto end = ends_.rbegin(); end != ends_.rend() && end->step >= step; ++end) {
    workload += end->offset + end->count * step;
  }
  return workload;
}

int64_t LoadTracker::Peak() const {
  if (peak_ != kUnknown) return peak_;
  peak_ = 0;
  for (const End& end : ends_) peak_ = std::max(peak_, end.workload);
  return peak_;
}

int64_t LoadTracker::PeakWith(int64_t tokens_at_start, int64_t steps, int64_t enough) const {
  const int64_t own_end = step_ + steps - 1;
  int64_t peak = 0;
  for (const End& end : ends_) {
    const int64_t own = end.step <= own_end ? tokens_at_start + end.step - step_ : 0;
    peak = std::max(peak, end.workload + own);
    if (peak > enough) return peak;
  }
  return std::max(peak, At(own_end) + tokens_at_start + steps - 1);
}

int64_t LoadTracker::EarliestStart(int64_t from, int64_t tokens_at_start, int64_t steps, int64_t limit) const {
  const int64_t final_tokens = tokens_at_start + steps - 1;
  CHECK_LE(final_tokens, limit) << "fits at no step";
  // Each end E forbids two runs of own ends: those just before E where the newcomer's last
  // step tops the others' slope, and those from E on where it would be too long already at
  // E. Runs start in the order of the ends, so one sweep that leaves each run finds the least.
  int64_t own_end = std::max(from, step_) + steps - 1;
  int64_t alive = 0;  // sequences that end at E or later
  for (const End& end : ends_) alive += end.count;
  int64_t previous = step_ - 1;
  for (const End& end : ends_) {
    if (own_end > previous && own_end <= end.step &&
        end.workload - alive * (end.step - own_end) + final_tokens > limit) {
      own_end = end.step + 1;
    }
    const int64_t start = own_end - steps + 1;
    if (own_end >= end.step && start <= end.step) {
      const int64_t allowed = end.workload + tokens_at_start + end.step - limit;
      own_end = std::max(start, std::min(allowed, end.step + 1)) + steps - 1;
    }
    alive -= end.count;
    previous = end.step;
  }
  return own_end - steps + 1;
}

}  // namespace fastdecode
