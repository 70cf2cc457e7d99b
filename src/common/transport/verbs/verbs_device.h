// An RDMA device that is open, and the port and GID on it that connections use.
//
// Thread rule: made by one thread; const afterwards, so any thread may use it. Endpoints
// share it and keep it open.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "common/base/status.h"
#include "common/config/config.h"
#include "common/transport/verbs/verbs_handles.h"

namespace fastdecode {

class VerbsDevice {
 public:
  // By name, or the first with an active port; the GID by index, or by type: on Ethernet
  // RoCE v2 with an IPv4 address, then RoCE v2 with any, then RoCE v1.
  // kNotFound: no such device, port or GID; kUnavailable: it is there and cannot be used.
  static Result<std::shared_ptr<const VerbsDevice>> Open(const VerbsOptions& options);

  ibv_context* context() const { return context_.get(); }
  const std::string& name() const { return name_; }
  uint8_t port() const { return port_; }
  const ibv_port_attr& port_attr() const { return port_attr_; }
  const ibv_device_attr& attr() const { return attr_; }
  const ibv_gid& gid() const { return gid_; }
  uint8_t gid_index() const { return gid_index_; }
  bool is_ethernet() const { return port_attr_.link_layer == IBV_LINK_LAYER_ETHERNET; }
  // "rxe0 port 1, GID 1 (RoCE v2, 10.9.0.1), MTU 4096".
  std::string Describe() const;
  // What is registered in it can only be written to over queue pairs of the same one. Gone before the device.
  Result<ProtectionDomainPtr> MakeDomain() const;
  // Whether the port still is active; for the message after a failure.
  bool PortIsActive() const;

 private:
  VerbsDevice() = default;
  Status OpenPort(ibv_device* device, const VerbsOptions& options);
  Status ChooseGid(const VerbsOptions& options);

  std::string name_;
  uint8_t port_ = 1;
  uint8_t gid_index_ = 0;
  uint32_t gid_type_ = 0;
  ContextPtr context_;
  ibv_device_attr attr_{};
  ibv_port_attr port_attr_{};
  ibv_gid gid_{};
};

}  // namespace fastdecode
