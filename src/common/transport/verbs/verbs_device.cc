#include "common/transport/verbs/verbs_device.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <vector>

#include "common/transport/verbs/verbs_errors.h"

namespace fastdecode {
namespace {

// Those that the kernel has, whether or not libibverbs can drive them.
std::vector<std::string> KernelDevices() {
  std::vector<std::string> names;
  DIR* folder = opendir("/sys/class/infiniband");
  if (folder == nullptr) return names;
  while (const dirent* entry = readdir(folder)) {
    if (entry->d_name[0] != '.') names.emplace_back(entry->d_name);
  }
  closedir(folder);
  return names;
}

std::string Join(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

const char* GidTypeName(uint32_t type) {
  switch (type) {
    case IBV_GID_TYPE_ROCE_V2:
      return "RoCE v2";
    case IBV_GID_TYPE_ROCE_V1:
      return "RoCE v1";
    default:
      return "InfiniBand";
  }
}

bool HoldsIpv4(const ibv_gid& gid) { return IN6_IS_ADDR_V4MAPPED(reinterpret_cast<const in6_addr*>(gid.raw)); }
bool IsLinkLocal(const ibv_gid& gid) { return IN6_IS_ADDR_LINKLOCAL(reinterpret_cast<const in6_addr*>(gid.raw)); }

// The higher the better.
int Preference(const ibv_gid_entry& entry) {
  if (entry.gid_type == IBV_GID_TYPE_IB) return 5;
  if (entry.gid_type == IBV_GID_TYPE_ROCE_V2) return HoldsIpv4(entry.gid) ? 4 : IsLinkLocal(entry.gid) ? 2 : 3;
  return 1;
}

// The devices that libibverbs offers; freed at the end. A device that is opened stays open.
class DeviceList {
 public:
  DeviceList() : devices_(ibv_get_device_list(&count_)) {}
  ~DeviceList() {
    if (devices_ != nullptr) ibv_free_device_list(devices_);
  }
  DeviceList(const DeviceList&) = delete;
  DeviceList& operator=(const DeviceList&) = delete;
  int size() const { return devices_ == nullptr ? 0 : count_; }
  ibv_device* operator[](int i) const { return devices_[i]; }
  std::vector<std::string> Names() const {
    std::vector<std::string> names;
    for (int i = 0; i < size(); ++i) names.emplace_back(ibv_get_device_name(devices_[i]));
    return names;
  }

 private:
  int count_ = 0;
  ibv_device** devices_;
};

Status NoDevice() {
  const std::vector<std::string> names = KernelDevices();
  if (names.empty()) {
    return NotFound(
        "no RDMA device on this host (ibv_devices shows none; soft-RoCE: modprobe rdma_rxe, then rdma link "
        "add rxe0 type rxe netdev eth0)");
  }
  return NotFound("the kernel has the RDMA device " + Join(names) +
                  ", but libibverbs has no provider for it (install the package ibverbs-providers) or "
                  "/dev/infiniband is missing (modprobe ib_uverbs)");
}

// libibverbs' own error says little where it is a matter of permission.
Status CannotOpen(ibv_device* device, int error) {
  const std::string file = std::string("/dev/infiniband/") + device->dev_name;
  const bool allowed = access(file.c_str(), R_OK | W_OK) == 0;
  return Unavailable(std::string("cannot open the RDMA device ") + ibv_get_device_name(device) + ": " +
                     (allowed ? std::strerror(error)
                              : "this user may not read and write " + file + " (" + std::strerror(errno) +
                                    "); let it, by the file's mode or group"));
}

}  // namespace

Result<std::shared_ptr<const VerbsDevice>> VerbsDevice::Open(const VerbsOptions& options) {
  const DeviceList devices;
  if (devices.size() == 0) return NoDevice();
  Status status;
  for (int i = 0; i < devices.size(); ++i) {
    if (options.device != "auto" && options.device != ibv_get_device_name(devices[i])) continue;
    std::shared_ptr<VerbsDevice> device(new VerbsDevice());
    Status opened = device->OpenPort(devices[i], options);
    if (opened.ok()) return std::shared_ptr<const VerbsDevice>(std::move(device));
    if (status.ok()) status = std::move(opened);
  }
  if (!status.ok()) return status;
  return NotFound("no RDMA device is called \"" + options.device + "\"; this host has " + Join(devices.Names()));
}

Status VerbsDevice::OpenPort(ibv_device* device, const VerbsOptions& options) {
  name_ = ibv_get_device_name(device);
  port_ = static_cast<uint8_t>(options.port);
  context_.reset(ibv_open_device(device));
  if (context_ == nullptr) return CannotOpen(device, errno);
  if (ibv_query_device(context_.get(), &attr_) != 0) return Unavailable("cannot ask the RDMA device " + name_);
  if (port_ > attr_.phys_port_cnt || ibv_query_port(context_.get(), port_, &port_attr_) != 0) {
    return NotFound("RDMA device " + name_ + " has no port " + std::to_string(port_) + "; it has " +
                    std::to_string(attr_.phys_port_cnt));
  }
  if (port_attr_.state != IBV_PORT_ACTIVE) {
    return Unavailable("port " + std::to_string(port_) + " of the RDMA device " + name_ + " is " +
                       ibv_port_state_str(port_attr_.state) +
                       ", not active: check the cable, `ip link`, and on InfiniBand the subnet manager");
  }
  return ChooseGid(options);
}

Result<ProtectionDomainPtr> VerbsDevice::MakeDomain() const {
  ProtectionDomainPtr domain(ibv_alloc_pd(context_.get()));
  if (domain == nullptr) {
    return Unavailable("the RDMA device " + name_ + " has no protection domain left: " + std::strerror(errno));
  }
  return domain;
}

Status VerbsDevice::ChooseGid(const VerbsOptions& options) {
  int best = 0;
  std::vector<std::string> seen;
  for (int i = 0; i < port_attr_.gid_tbl_len && i < 256; ++i) {
    ibv_gid_entry entry{};
    if (ibv_query_gid_ex(context_.get(), port_, static_cast<uint32_t>(i), &entry, 0) != 0) continue;
    seen.push_back(std::to_string(i) + " (" + GidTypeName(entry.gid_type) + ", " + FormatGid(entry.gid) + ")");
    const bool wanted = options.gid_index < 0 ? Preference(entry) > best : options.gid_index == i;
    if (!wanted) continue;
    best = Preference(entry);
    gid_ = entry.gid;
    gid_type_ = entry.gid_type;
    gid_index_ = static_cast<uint8_t>(i);
  }
  if (best > 0) return OkStatus();
  const std::string which = options.gid_index < 0 ? "no GID" : "no GID of index " + std::to_string(options.gid_index);
  return NotFound("port " + std::to_string(port_) + " of the RDMA device " + name_ + " has " + which +
                  (seen.empty() ? ": give its network interface an address" : "; it has " + Join(seen)));
}

std::string VerbsDevice::Describe() const {
  return name_ + " port " + std::to_string(port_) + ", GID " + std::to_string(gid_index_) + " (" +
         GidTypeName(gid_type_) + ", " + FormatGid(gid_) + "), MTU " +
         std::to_string(128 << static_cast<int>(port_attr_.active_mtu));
}

bool VerbsDevice::PortIsActive() const {
  ibv_port_attr attr{};
  return ibv_query_port(context_.get(), port_, &attr) == 0 && attr.state == IBV_PORT_ACTIVE;
}

}  // namespace fastdecode
