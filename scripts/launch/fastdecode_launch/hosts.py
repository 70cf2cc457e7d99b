"""A host that runs workers: this one, or one behind ssh. Both run the same worker.sh."""

import shlex
import subprocess
import threading
from pathlib import Path

from .errors import HostUnreachable

WORKER_SH = Path(__file__).with_name("worker.sh").read_text()
SSH_FAILED = 255
# BatchMode: a prompt for a password would hang unseen. Alive: a dead link ends within 15 s.
SSH_OPTIONS = ["-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10",
               "-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=3"]
CALL_TIMEOUT_S = 60


class Host:
    """Runs commands of worker.sh for one cluster. Safe to use from several threads."""

    def __init__(self, key, ssh="", ssh_config=""):
        # The remote folder has another name, so that a host that is reached both ways keeps two.
        self.key = key + "-remote" if ssh else key
        self.ssh = ssh
        self.ssh_config = ssh_config

    @property
    def name(self):
        return self.ssh or "this host"

    def _argv(self, command, arguments):
        argv = ["sh", "-c", WORKER_SH, "worker", self.key, command, *map(str, arguments)]
        if not self.ssh:
            return argv
        config = ["-F", self.ssh_config] if self.ssh_config else []
        return ["ssh", *config, *SSH_OPTIONS, "--", self.ssh, shlex.join(argv)]

    def popen(self, command, *arguments, **options):
        """Starts a command; in a session of its own, so that the terminal's Ctrl-C ends only us."""
        return subprocess.Popen(self._argv(command, arguments), start_new_session=True, **options)

    def call(self, command, *arguments, timeout=CALL_TIMEOUT_S):
        """Runs a command to its end and gives its exit status, stdout and stderr."""
        process = self.popen(command, *arguments, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE, text=True, errors="replace")
        try:
            out, err = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise HostUnreachable(f"{self.name} did not answer within {timeout} s") from None
        except BaseException:
            process.kill()
            process.wait()
            raise
        self.check_reached(process.returncode, err)
        return process.returncode, out, err

    def check_reached(self, status, err):
        if self.ssh and status == SSH_FAILED:
            raise HostUnreachable(f"{self.ssh} cannot be reached by ssh: {last_line(err)}; check that "
                                  f"\"ssh -o BatchMode=yes {self.ssh} true\" works without a password")


def last_line(text):
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1].strip() if lines else "no message"


class LineReader(threading.Thread):
    """Hands each line of a process's stdout to `handle`, then None at its end."""

    def __init__(self, process, handle):
        super().__init__(daemon=True)
        self._process = process
        self._handle = handle
        self.start()

    def run(self):
        for line in self._process.stdout:
            self._handle(line.rstrip("\n"))
        self._handle(None)
