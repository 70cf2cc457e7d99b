"""What the tests of RDMA share: the rig, the programs, and how a VM that cannot be had skips a test."""

import os
import subprocess
import sys
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.realpath(os.path.join(HERE, "../.."))
sys.path.insert(0, os.path.join(HERE, "../support/vm"))
import vm  # noqa: E402


def host_has_device():
    folder = "/sys/class/infiniband"
    return os.path.isdir(folder) and bool(os.listdir(folder))


class RdmaCase(unittest.TestCase):
    """BUILD is the build folder; main() sets it from the command line."""

    BUILD = ""

    @classmethod
    def setUpClass(cls):
        try:
            cls.rig = vm.Rig(cls.BUILD, rdma=True)
        except vm.Unavailable as missing:
            print(f"tests/rdma: skipped: {missing}")
            sys.exit(vm.SKIPPED)

    def program(self, name):
        return os.path.join(self.BUILD, "tests" if name.endswith("_test") else "bin", name)

    def programs(self, *names):
        return {name: self.program(name) for name in names}


def run_on_device(build, program, arguments, timeout_s, echo=True):
    """Runs a test program where there is a device: here, if there is one, else in a virtual machine."""
    path = os.path.join(build, "tests", program)
    if host_has_device():
        return subprocess.run([path, *arguments], timeout=timeout_s, check=False).returncode
    try:
        rig = vm.Rig(build, rdma=True)
    except vm.Unavailable as missing:
        print(f"tests/rdma: skipped: {missing}")
        return vm.SKIPPED
    with rig.machine("vm", files={program: path}, echo=echo) as machine:
        return machine.run(" ".join([program, *(f"'{argument}'" for argument in arguments)]), timeout_s).status


def main():
    RdmaCase.BUILD = os.path.realpath(sys.argv.pop(1))
    unittest.main(verbosity=2)
