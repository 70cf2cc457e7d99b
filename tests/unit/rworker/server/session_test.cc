#include "rworker/session.h"

#include <gtest/gtest.h>

#include "rworker/host_limits.h"
#include "tests/support/allow_threads.h"

namespace fastdecode::rworker {
namespace {

SessionPlan SmallPlan() {
  SessionPlan plan;
  plan.shape = {1, 2, 1, 8};
  plan.limits = {32, 64, 4, 4, 1};
  plan.kv = {1, 1};
  plan.endpoint.lanes = {LaneOptions{4096, 2, 2}, LaneOptions{4096, 2, 2}};
  return plan;
}

[[noreturn]] void StartWithThreads(size_t count) {
  PoolOptions pool;
  pool.bytes = 1 << 20;
  PoolMemory memory = PoolMemory::Map(pool).value();
  Session::Environment environment;
  environment.memory = &memory;
  environment.kernel = kernels::ChooseAttentionKernel("reference", kernels::DetectCpuFeatures()).kernel;
  environment.threads = 1;
  environment.topology = FlatTopology(AllowedCpus());
  environment.notify = [] {};
  AllowThreads(count);
  const Status status = Session::Start(SmallPlan(), std::move(environment)).status();
  std::fprintf(stderr, "%s\n", status.message().c_str());
  _exit(status.code() == StatusCode::kResourceExhausted ? 0 : 4);
}

TEST(Session, AHostWithoutAThreadIsSaidWithWhatToDo) {
  for (size_t count : {0U, 1U}) {  // it needs two
    EXPECT_EXIT(StartWithThreads(count), testing::ExitedWithCode(0), "no thread for a session .*ulimit -u.*pids.max");
  }
}

}  // namespace
}  // namespace fastdecode::rworker
