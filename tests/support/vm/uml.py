"""The machines of vm.py as user-mode Linux: a kernel that is an ordinary program, with soft-RoCE.

User code runs at the host's speed (with the host's instructions), on one CPU a machine: for benchmarks of what
needs an RDMA device. Debian has no such kernel with RDMA, so the first Rig of a build folder builds it from
Debian's source, 10-25 minutes; nothing of the host is needed but a compiler, flex, bison and bc.
"""

import contextlib
import glob
import os
import shutil
import socket
import subprocess
import sys

import vm
from kernel import Unavailable, download

SOURCE = "linux-source"
PATCH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "uml_registers.patch")
# UML_PCI_OVER_VIRTIO gives user-mode Linux the DMA without which the kernel's RDMA cannot be had.
OPTIONS = """MODULES=n VIRTIO_UML=y UML_PCI_OVER_VIRTIO=y UML_PCI_OVER_VIRTIO_DEVICE_ID=1234 NET=y INET=y IPV6=y UNIX=y PACKET=y
    NETDEVICES=y DUMMY=y UML_NET_VECTOR=y INFINIBAND=y INFINIBAND_USER_ACCESS=y INFINIBAND_ADDR_TRANS=y RDMA_RXE=y TMPFS=y
    SHMEM=y DEVTMPFS=y BLK_DEV_INITRD=y PROC_FS=y SYSFS=y BINFMT_ELF=y BINFMT_SCRIPT=y CRYPTO_CRC32=y CRYPTO_CRC32C=y
    CONFIGFS_FS=y DEBUG_KERNEL=n UNIX98_PTYS=y SSL=y HZ_250=y HIGH_RES_TIMERS=y""".split()
NEEDED = ["RDMA_RXE", "INFINIBAND_USER_ACCESS", "UML_NET_VECTOR", "DUMMY", "SSL", "CRYPTO_CRC32"]
SOCKET_BYTES = 4 << 20


class Kernel:
    def __init__(self, folder):
        self.image = os.path.join(folder, "linux")
        if not os.path.exists(self.image):
            _build(folder, self.image)

    def modules(self, names):  # noqa: ARG002 - all that is needed is built in
        return []


class Cable:
    """Frames go from one machine's socket straight into the other's. A sender waits while that is full: none is lost."""

    def __init__(self, names):
        self._ends = dict(zip(names, socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM), strict=True))
        for end in self._ends.values():
            end.setblocking(False)
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BYTES)

    def of(self, name):
        return self._ends[name]


class Rig(vm.Rig):
    TOOLS = ["busybox", "make", "gcc", "flex", "bison", "bc", "patch"]
    INSTALL = "apt-get install make gcc flex bison bc patch busybox-static"
    BASE = "base-uml"

    def machine(self, name, **options):
        return Machine(self, name, **options)

    def cable(self, folder, names):  # noqa: ARG002
        return Cable(names)

    def _make_kernel(self):
        return Kernel(os.path.join(self.folder, "uml"))

    def _choose_accelerator(self):
        return ""


class Machine(vm.Machine):
    def _boot(self, log):
        self._agent, inside = socket.socketpair()
        descriptors = [inside.fileno()]
        arguments = [
            self.rig.kernel.image, f"mem={self.memory_mib}M", f"initrd={self.initrd}", "quiet", "con=null", "con0=null,fd:1",
            f"ssl0=fd:{inside.fileno()}", f"ADDRESS={self.address}",
        ]  # fmt: skip
        if self.cable:
            descriptors.append(self.cable.of(self.name).fileno())
            mac = f"52:54:00:00:00:{int(self.address.split('.')[-1]):02x}"
            arguments.append(f"vec0:transport=fd,fd={descriptors[-1]},mtu=9000,depth=128,mac={mac}")
        with inside:
            return subprocess.Popen(arguments, stdin=subprocess.DEVNULL, stdout=log, stderr=log, pass_fds=descriptors,
                                    start_new_session=True)  # fmt: skip

    def _connect(self):
        return self._agent

    def _signal(self, number):
        """To all its processes: each of the guest's is one of the host's."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)


def _build(folder, image):
    print("vm: building a user-mode Linux with soft-RoCE, once for this build folder; 10-25 minutes", file=sys.stderr, flush=True)
    unpacked = download(SOURCE, folder)
    archive = glob.glob(os.path.join(unpacked, "usr/src/linux-source-*.tar.xz"))[0]
    subprocess.run(["tar", "-xJf", archive, "-C", folder], check=True)
    tree = os.path.join(folder, os.path.basename(archive).removesuffix(".tar.xz"))
    shutil.rmtree(unpacked)
    with open(os.path.join(tree, "fragment"), "w", encoding="utf-8") as fragment:
        fragment.writelines(f"CONFIG_{option}\n" for option in OPTIONS)
    with open(os.path.join(folder, "build.log"), "w", encoding="utf-8") as log:
        for step in (["patch", "-p1", "-i", PATCH], ["make", "ARCH=um", "defconfig"], ["scripts/kconfig/merge_config.sh", "-m", ".config", "fragment"],
                     ["make", "ARCH=um", "olddefconfig"], ["nice", "make", "ARCH=um", f"-j{os.cpu_count()}", "linux"]):  # fmt: skip
            done = subprocess.run(step, cwd=tree, stdout=log, stderr=log, stdin=subprocess.DEVNULL, check=False)
            if done.returncode != 0:
                raise Unavailable(f"user-mode Linux cannot be built: `{' '.join(step)}` failed, see {log.name}")
            if step[-1] == "olddefconfig":
                _check_config(os.path.join(tree, ".config"))
    subprocess.run(["strip", "-o", image + ".part", os.path.join(tree, "linux")], check=True)
    os.rename(image + ".part", image)
    shutil.rmtree(tree)


def _check_config(path):
    with open(path, encoding="utf-8") as file:
        lines = file.read().splitlines()
    missing = [option for option in NEEDED if f"CONFIG_{option}=y" not in lines]
    if missing:
        raise Unavailable(f"this kernel's source cannot be built as user-mode Linux with {', '.join(missing)}")
