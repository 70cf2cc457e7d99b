"""Virtual machines for tests of what this host lacks: RDMA devices, NUMA nodes, a second host.

qemu boots Debian's own kernel with the files that a test names, under KVM where that works and emulated
elsewhere (100 times slower; 4-8 s until the first command). Commands run inside by a small agent; from
outside a machine can be killed, frozen and thawed, and the cable between two cut and mended.

    rig = vm.Rig(build_folder)
    with rig.machine("a", files={"fastdecode-rworker": path}) as a:
        status, output = a.run("fastdecode-rworker --version")

Everything that is kept lies in BUILD/tests/vm. No network of the host is involved.
"""

import base64
import collections
import fcntl
import itertools
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

from cable import Cable
from initramfs import Initramfs
from kernel import Kernel, Unavailable

MODULES = ["virtio_pci", "virtio_net", "virtio_console"]
# rxe asks the crypto API for crc32, which no dependency of it names.
RDMA_MODULES = ["crc32_generic", "crc32-pclmul", "ib_uverbs", "rdma_rxe"]
PROVIDERS = "/usr/lib/x86_64-linux-gnu/libibverbs"
BOOT_TIMEOUT_S = 120
KVM_TIMEOUT_S = 15
__all__ = ["Cable", "Machine", "Rig", "SKIPPED", "Unavailable"]
SKIPPED = 77  # the exit status that CTest takes for a skipped test

Result = collections.namedtuple("Result", "status output")


class Rig:
    """Kernel, initramfs and accelerator, made once per build folder. rdma: machines get a device, rxe0."""

    TOOLS = ["qemu-system-x86_64", "busybox", "modprobe"]
    INSTALL = "scripts/setup --tests installs it"
    BASE = "base"

    def __init__(self, build, rdma=False):
        self.folder = os.path.join(os.path.realpath(build), "tests/vm")
        self.rdma = rdma
        for tool in self.TOOLS + (["ip", "rdma"] if rdma else []):
            if not _which(tool):
                raise Unavailable(f"{tool} is not installed ({self.INSTALL})")
        os.makedirs(self.folder, exist_ok=True)
        with open(os.path.join(self.folder, self.BASE + ".lock"), "w", encoding="utf-8") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self.kernel = self._make_kernel()
            self.base = os.path.join(self.folder, self.BASE + ("-rdma" if rdma else ""))
            self._make_base()
            self.accelerator = self._choose_accelerator()

    def machine(self, name, **options):
        return Machine(self, name, **options)

    def cable(self, folder, names):
        return Cable(folder, names)

    def _make_kernel(self):
        return Kernel(os.path.join(self.folder, "kernel"))

    def _make_base(self):
        with Initramfs(self.base) as base:
            for folder in ("proc", "sys", "dev", "tmp", "run", "w"):
                base.folder(folder)
            base.file("init", os.path.join(os.path.dirname(__file__), "init"))
            base.text("etc/passwd", "root:x:0:0::/tmp:/bin/sh\nnobody:x:65534:65534::/tmp:/bin/sh\n")
            base.text("etc/group", "root:x:0:\nnogroup:x:65534:\n")
            base.program("bin/busybox", _which("busybox"))
            modules = self.kernel.modules(MODULES + (RDMA_MODULES if self.rdma else []))
            for module in modules:
                base.file("lib/mods/" + os.path.basename(module), module)
            base.text("lib/mods/order", "".join(os.path.basename(module) + "\n" for module in modules))
            if self.rdma:
                for tool in ("ip", "rdma"):
                    base.program("bin/" + tool, _which(tool))
                self._add_provider(base)

    def _add_provider(self, base):
        names = [name for name in os.listdir(PROVIDERS) if name.startswith("librxe-")] if os.path.isdir(PROVIDERS) else []
        if not names:
            raise Unavailable("libibverbs' provider for rxe is not installed (scripts/setup installs ibverbs-providers)")
        base.program(f"{PROVIDERS}/{names[0]}".lstrip("/"), f"{PROVIDERS}/{names[0]}")
        base.text("etc/libibverbs.d/rxe.driver", "driver rxe\n")

    def _choose_accelerator(self):
        """KVM may be there and not work (nested, or broken): a machine that starts is the proof."""
        if not os.access("/dev/kvm", os.R_OK | os.W_OK):
            return "tcg,thread=multi"
        path = os.path.join(self.folder, "accelerator")
        if not os.path.exists(path):
            self.accelerator = "kvm"
            works = True
            try:
                with Machine(self, "probe", network=False, boot_timeout_s=KVM_TIMEOUT_S):
                    pass
            except RuntimeError:
                works = False
            with open(path, "w", encoding="utf-8") as file:
                file.write("kvm" if works else "tcg,thread=multi")
        with open(path, encoding="utf-8") as file:
            return file.read()


class Job:
    """A command that runs in a machine."""

    def __init__(self, machine, command):
        self.machine, self.command = machine, command
        self.lines = []
        self.status = None

    @property
    def output(self):
        return "\n".join(self.lines)

    def wait(self, timeout_s=120):
        """The Result; RuntimeError after the timeout or if the machine ends."""
        self.machine.wait_until(lambda: self.status is not None, timeout_s, lambda: f"`{self.command}` to end", self)
        return Result(self.status, self.output.strip("\n"))

    def wait_for(self, pattern, timeout_s=120):
        """The match of a regular expression in the output, soon or now."""
        found = []

        def look():
            found[:] = [re.search(pattern, self.output, re.MULTILINE)]
            return found[0] is not None or self.status is not None

        self.machine.wait_until(look, timeout_s, lambda: f"/{pattern}/ from `{self.command}`", self)
        if found[0] is None:
            raise RuntimeError(f"`{self.command}` ended with {self.status} and never said /{pattern}/:\n{self.output}")
        return found[0]


class Machine:
    """One virtual machine, running from __enter__ to __exit__ or kill().

    files: name in /w -> path here; trees: the same for folders. Programs' libraries come along.
    """

    def __init__(self, rig, name, files=None, trees=None, cpus=2, memory_mib=0, network=True, address="10.9.0.1",
                 cable=None, qemu=(), boot_timeout_s=BOOT_TIMEOUT_S, echo=False):  # fmt: skip
        self.rig, self.name = rig, name
        self.folder = tempfile.mkdtemp(prefix="fastdecode-vm-")
        self.boot_timeout_s = boot_timeout_s
        self.echo = echo
        self.address = address if network else ""
        self._ids = itertools.count()
        self._jobs = {}
        self._changed = threading.Condition()
        self._ready = self._ended = False
        self._process = self._socket = None
        self.cpus, self.cable, self._qemu = cpus, cable, list(qemu)
        self.initrd = self._make_initrd(files or {}, trees or {})
        self.memory_mib = memory_mib or 512 + 3 * os.path.getsize(self.initrd) // (1 << 20)

    def __enter__(self):
        with open(os.path.join(self.folder, "machine.log"), "w", encoding="utf-8") as log:
            self._process = self._boot(log)
        threading.Thread(target=self._read, daemon=True).start()
        try:
            self.wait_until(lambda: self._ready, self.boot_timeout_s, lambda: "it to start")
        except RuntimeError:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def spawn(self, command):
        """Starts a command (busybox sh, in /w) and returns its Job."""
        with self._changed:
            number = str(next(self._ids))
            job = self._jobs[number] = Job(self, command)
        self._socket.sendall(b"%s %s\n" % (number.encode(), base64.b64encode(command.encode())))
        return job

    def run(self, command, timeout_s=120):
        return self.spawn(command).wait(timeout_s)

    def freeze(self):
        self._signal(signal.SIGSTOP)

    def thaw(self):
        self._signal(signal.SIGCONT)

    def kill(self):
        """As if the power had failed."""
        if self._process is not None:
            self._signal(signal.SIGKILL)
            self._process.wait()

    def _signal(self, number):
        self._process.send_signal(number)

    def wait_until(self, condition, timeout_s, what, job=None):
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while not condition():
                if self._ended or not self._changed.wait(max(0, min(1, deadline - time.monotonic()))):
                    if self._ended or time.monotonic() >= deadline:
                        why = "the virtual machine ended" if self._ended else f"{timeout_s} s were over"
                        said = "\nIt said:\n" + "\n".join(job.lines[-40:]) if job else self._logs()
                        raise RuntimeError(f"{self.name}: {why} while waiting for {what()}{said}")

    def _logs(self):
        text = ""
        for name in ("machine.log", "kernel.log"):
            path = os.path.join(self.folder, name)
            if os.path.exists(path):
                with open(path, encoding="utf-8", errors="replace") as file:
                    text += f"\n{name}: " + file.read()[-2000:]
        return text

    def _make_initrd(self, files, trees):
        path = os.path.join(self.folder, "initrd")
        extra = path + ".files"
        with Initramfs(extra) as archive:
            for name, source in files.items():
                archive.program("w/" + name, source)
            for name, source in trees.items():
                archive.tree("w/" + name, source)
        with open(path, "wb") as out:
            for part in (self.rig.base, extra):
                with open(part, "rb") as data:
                    shutil.copyfileobj(data, out, 1 << 20)
                out.write(b"\0" * (-out.tell() % 4))
        os.remove(extra)
        return path

    def _boot(self, log):
        return subprocess.Popen(self._qemu_arguments(), stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def _qemu_arguments(self):
        folder = self.folder
        if self.cable:
            self._forget(self.cable.of(self.name)[0])
        local, remote = self.cable.of(self.name) if self.cable else (f"{folder}/net", f"{folder}/nobody")
        self._agent = f"{folder}/agent"
        network = [
            "-netdev", f"dgram,id=n0,local.type=unix,local.path={local},remote.type=unix,remote.path={remote}",
            "-device", f"virtio-net-pci,netdev=n0,host_mtu=9000,mac=52:54:00:00:00:{int(self.address.split('.')[-1]):02x}",
        ] if self.address else []  # fmt: skip
        # q35: microvm has no timer by which the emulated clock could be calibrated.
        return [
            "qemu-system-x86_64", "-machine", "q35", "-cpu", "max", "-accel", self.rig.accelerator,
            "-smp", str(self.cpus), "-m", str(self.memory_mib), "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
            "-kernel", self.rig.kernel.image, "-initrd", self.initrd,
            "-append", "console=ttyS0 quiet nokaslr mitigations=off panic=-1 tsc=reliable rdinit=/init "
            + (f"ADDRESS={self.address}" if self.address else ""),
            "-serial", f"file:{folder}/kernel.log", "-device", "virtio-serial-pci",
            "-chardev", f"socket,id=agent,path={self._agent},server=on,wait=off",
            "-device", "virtserialport,chardev=agent,nr=1", *network, *self._qemu,
        ]  # fmt: skip

    @staticmethod
    def _forget(path):
        """The socket of a machine that was killed."""
        if os.path.exists(path):
            os.remove(path)

    def _connect(self):
        """The connection to the agent."""
        connection = socket.socket(socket.AF_UNIX)
        while self._process.poll() is None:
            try:
                connection.connect(self._agent)
                break
            except OSError:
                time.sleep(0.05)
        return connection

    def _read(self):
        """The agent's lines, on a thread of its own until the machine ends."""
        self._socket = self._connect()
        try:
            with self._socket.makefile("r", encoding="utf-8", errors="replace") as lines:
                for line in lines:
                    self._take(line.rstrip("\n"))
        except OSError:
            pass
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def _take(self, line):
        number, _, text = line.partition("|")
        if self.echo and number != "ready" and not text.startswith("?"):
            print(f"{self.name}| {text}", file=sys.stderr, flush=True)
        with self._changed:
            if number == "ready":
                self._ready = True
            elif number in self._jobs:
                job = self._jobs[number]
                if re.fullmatch(r"\?\d+", text):
                    job.status = int(text[1:])
                else:
                    job.lines.append(text)
            self._changed.notify_all()


def _which(tool):
    # Some hosts keep these out of an ordinary user's PATH.
    return shutil.which(tool) or next((p for p in (f"/sbin/{tool}", f"/usr/sbin/{tool}") if os.path.exists(p)), None)
