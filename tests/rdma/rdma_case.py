"""What the tests of RDMA share: the rig, the programs, and how a VM that cannot be had skips a test."""

import os
import shutil
import subprocess
import sys
import tempfile
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

    def programs(self, *names):
        """As Machine's files: each where it was built, in bin/ or tests/."""
        return {name: next(p for p in (f"{self.BUILD}/bin/{name}", f"{self.BUILD}/tests/{name}") if os.path.exists(p)) for name in names}

    def boot(self, name, programs, **options):
        """A machine that runs until the test ends."""
        machine = self.rig.machine(name, files=self.programs(*programs), **options)
        machine.__enter__()
        self.addCleanup(machine.__exit__)
        return machine

    def lay_cable(self, *names):
        folder = tempfile.mkdtemp(prefix="fastdecode-cable-")
        self.addCleanup(shutil.rmtree, folder)
        return vm.Cable(folder, names)


def run_on_device(build, commands, timeout_s):
    """Runs test programs where there is a device: here, if there is one, else in a virtual machine."""
    if host_has_device():
        paths = [os.path.join(build, "tests", command).split() for command in commands]
        return max(subprocess.run(path, timeout=timeout_s, check=False).returncode for path in paths)
    try:
        rig = vm.Rig(build, rdma=True)
    except vm.Unavailable as missing:
        print(f"tests/rdma: skipped: {missing}")
        return vm.SKIPPED
    files = {program: os.path.join(build, "tests", program) for program in (c.split()[0] for c in commands)}
    with rig.machine("vm", files=files, echo=True) as machine:
        machine.run("sysctl -w vm.nr_hugepages=16")  # for the test of rings on huge pages
        results = [machine.run(f"{command} --gtest_brief=1", timeout_s) for command in commands]
    # A skipped test would hide that there is no device where there should be one.
    return max(1 if "SKIPPED" in result.output else result.status for result in results)


def main():
    RdmaCase.BUILD = os.path.realpath(sys.argv.pop(1))
    unittest.main(verbosity=2)
