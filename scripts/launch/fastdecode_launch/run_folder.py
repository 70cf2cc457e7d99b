"""What a cluster that is up has on this host: one folder, keyed by its config's real path.

/tmp and not the user's runtime folder, which is emptied when the last session ends while a
detached cluster lives on.
"""

import fcntl
import hashlib
import json
import os
import shutil
import socket
import stat
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from .errors import EXIT_USAGE, LaunchError


@dataclass
class Worker:
    """One process of the cluster, as it was started."""

    name: str  # "rworker-0", "sworker"
    ssh: str  # empty: a process of this host
    address: str
    argv: list
    cpus: str  # for taskset; "-": not pinned
    about: str  # for its line


@dataclass
class State:
    config: str
    ssh_config: str
    secret_file: str
    workers: list  # R-workers in the config's order, the S-worker, if it is this script's, last
    sworker_cpus: str = "-"  # that are the S-worker's; "-": nothing is pinned

    def has_sworker(self):
        return self.workers[-1].name == "sworker"

    def rworkers(self):
        return [worker for worker in self.workers if worker.name != "sworker"]

    def worker(self, name):
        for worker in self.workers:
            if worker.name == name:
                return worker
        names = ", ".join(worker.name for worker in self.workers)
        raise LaunchError(f"no worker is called {name}; there are {names}", EXIT_USAGE)


class RunFolder:
    def __init__(self, config):
        self.config = os.path.realpath(config)
        text = socket.gethostname() + "\n" + self.config
        self.key = hashlib.sha256(text.encode()).hexdigest()[:12]
        self.root = Path(f"/tmp/fastdecode-{os.getuid()}")
        self.path = self.root / self.key
        self.effective_config = self.path / "effective.json"
        self._state_file = self.path / "state.json"

    def create(self):
        """Makes the folder; only this user may enter it."""
        self._own(self.root)
        self._own(self.path)

    @staticmethod
    def _own(folder):
        folder.mkdir(mode=0o700, exist_ok=True)
        info = folder.lstat()
        if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.getuid():
            raise LaunchError(f"{folder} is not a folder of this user; remove it")
        folder.chmod(0o700)

    @contextmanager
    def lock(self, say):
        """One command at a time changes a cluster."""
        with self._locked(self.root / f"{self.key}.lock", lambda: say(
                "waiting for another fastdecode-cluster command on this config")):
            try:
                yield
            finally:
                if not self._state_file.exists():  # nothing is left that the lock would guard
                    (self.root / f"{self.key}.lock").unlink()

    @contextmanager
    def port_lock(self):
        """Held from the choice of free ports until they are taken."""
        with self._locked(self.root / "ports.lock", lambda: None):
            yield

    @contextmanager
    def _locked(self, path, on_wait):
        self._own(self.root)
        while True:
            with open(path, "w") as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    on_wait()
                    fcntl.flock(file, fcntl.LOCK_EX)
                # Whoever held it may have removed it; then the lock is on a file that nobody else finds.
                if self._is_at(path, file):
                    yield
                    return

    @staticmethod
    def _is_at(path, file):
        try:
            return os.path.samestat(os.fstat(file.fileno()), path.stat())
        except FileNotFoundError:
            return False

    def reserved_ports(self):
        """Of every cluster of this user that is up: a worker that died keeps its port for its restart."""
        ports = set()
        for path in self.root.glob("*/state.json"):
            try:
                workers = json.loads(path.read_text())["workers"]
            except (OSError, ValueError, KeyError):
                continue  # taken down this moment, or not ours to read
            ports |= {int(worker["address"].rpartition(":")[2]) for worker in workers}
        return ports

    def load(self):
        """The state, or None where nothing was brought up or all was taken down."""
        try:
            text = self._state_file.read_text()
        except (FileNotFoundError, NotADirectoryError):
            return None
        if self.path.stat().st_uid != os.getuid():
            raise LaunchError(f"{self.path} is not a folder of this user; remove it")
        values = json.loads(text)
        values["workers"] = [Worker(**worker) for worker in values["workers"]]
        return State(**values)

    def save(self, state):
        self._replace(self._state_file, json.dumps(asdict(state), indent=1))

    def save_effective(self, config):
        self._replace(self.effective_config, json.dumps(config, indent=2) + "\n")

    @staticmethod
    def _replace(path, text):
        new = path.with_suffix(".new")
        new.write_text(text)
        new.rename(path)

    def forget(self):
        self._state_file.unlink(missing_ok=True)

    def remove_remains(self):
        """The logs that an attempt which failed has left."""
        if self.path.is_dir() and self.path.stat().st_uid == os.getuid():
            shutil.rmtree(self.path)
