// What the tests of the scheduler share.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <vector>

#include "sworker/scheduler/scheduler.h"

namespace fastdecode {

// One mini-batch, one R-worker, room for everything, unless a test says otherwise.
inline SchedulerOptions Options() {
  SchedulerOptions options;
  options.mini_batches = 1;
  options.max_batch = 16;
  options.max_context = 100;
  options.block_tokens = 10;
  return options;
}

inline std::vector<SequenceId> Ids(const std::vector<PrefillItem>& items) {
  std::vector<SequenceId> ids;
  for (const PrefillItem& item : items) ids.push_back(item.sequence);
  return ids;
}

inline std::vector<SequenceId> Ids(const PassPlan& plan) {
  std::vector<SequenceId> ids;
  for (const PassRow& row : plan.rows) ids.push_back(row.sequence);
  return ids;
}

// Prefills at once whatever may start now.
inline std::vector<SequenceId> Prefill(Scheduler& scheduler) {
  const auto ids = Ids(scheduler.PlanPrefill());
  for (SequenceId id : ids) scheduler.PrefillDone(id);
  return ids;
}

inline void End(Scheduler& scheduler, SequenceId id) {
  scheduler.Finished(id);
  scheduler.BlocksFreed(id);
}

}  // namespace fastdecode
