#include "tests/support/raw_queue_pair.h"

#include <cstring>

#include "common/base/logging.h"

namespace fastdecode {

QueuePairPtr MakeRawQueuePair(const VerbsDevice& device, ibv_pd* domain, ibv_cq* queue, uint32_t requests,
                              uint32_t inline_bytes) {
  ibv_qp_init_attr init{};
  init.send_cq = init.recv_cq = queue;
  init.qp_type = IBV_QPT_RC;
  init.cap = {requests, requests, 1, 1, inline_bytes};
  QueuePairPtr pair(ibv_create_qp(domain, &init));
  CHECK(pair != nullptr);
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_INIT;
  attr.port_num = device.port();
  attr.qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
  CHECK_EQ(ibv_modify_qp(pair.get(), &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS), 0);
  return pair;
}

QueuePairAddress AddressOf(const VerbsDevice& device, const ibv_qp& pair) {
  QueuePairAddress address;
  std::memcpy(address.gid.data(), device.gid().raw, address.gid.size());
  address.lid = device.port_attr().lid;
  address.pair = pair.qp_num;
  address.first_psn = kRawFirstPsn;
  return address;
}

void ConnectRawQueuePair(const VerbsDevice& device, ibv_qp* pair, const QueuePairAddress& peer) {
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_RTR;
  attr.path_mtu = device.port_attr().active_mtu;
  attr.dest_qp_num = peer.pair;
  attr.rq_psn = peer.first_psn;
  attr.max_dest_rd_atomic = 1;
  attr.min_rnr_timer = 12;
  attr.ah_attr.port_num = device.port();
  attr.ah_attr.is_global = 1;
  attr.ah_attr.dlid = peer.lid;
  std::memcpy(attr.ah_attr.grh.dgid.raw, peer.gid.data(), peer.gid.size());
  attr.ah_attr.grh.sgid_index = device.gid_index();
  attr.ah_attr.grh.hop_limit = 64;
  CHECK_EQ(ibv_modify_qp(pair, &attr,
                         IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                             IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER),
           0);
  attr = {};
  attr.qp_state = IBV_QPS_RTS;
  attr.sq_psn = kRawFirstPsn;
  attr.timeout = 14;
  attr.retry_cnt = 6;
  attr.rnr_retry = 6;
  attr.max_rd_atomic = 1;
  CHECK_EQ(ibv_modify_qp(pair, &attr,
                         IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
                             IBV_QP_MAX_QP_RD_ATOMIC),
           0);
}

}  // namespace fastdecode
