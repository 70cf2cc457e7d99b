// libibverbs' objects as values that destroy themselves. What an object needs (a queue
// pair its completion queue, a registration its protection domain) must outlive it.
#pragma once

#include <infiniband/verbs.h>

#include <memory>

namespace fastdecode {

struct VerbsDeleter {
  void operator()(ibv_context* context) const { (void)ibv_close_device(context); }
  void operator()(ibv_pd* domain) const { (void)ibv_dealloc_pd(domain); }
  void operator()(ibv_mr* region) const { (void)ibv_dereg_mr(region); }
  void operator()(ibv_comp_channel* channel) const { (void)ibv_destroy_comp_channel(channel); }
  void operator()(ibv_cq* queue) const { (void)ibv_destroy_cq(queue); }
  void operator()(ibv_qp* pair) const { (void)ibv_destroy_qp(pair); }
};

template <typename T>
using VerbsPtr = std::unique_ptr<T, VerbsDeleter>;
using ContextPtr = VerbsPtr<ibv_context>;
using ProtectionDomainPtr = VerbsPtr<ibv_pd>;
using MemoryRegionPtr = VerbsPtr<ibv_mr>;
using CompletionChannelPtr = VerbsPtr<ibv_comp_channel>;
using CompletionQueuePtr = VerbsPtr<ibv_cq>;
using QueuePairPtr = VerbsPtr<ibv_qp>;

}  // namespace fastdecode
