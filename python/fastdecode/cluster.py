"""Which S-worker to talk to: one that runs, or a cluster brought up for the call."""

import json
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from pathlib import Path

from fastdecode import keys
from fastdecode.client import Client
from fastdecode.errors import EXIT_DONE, EXIT_LOST, EXIT_USAGE, FastdecodeError, UsageError

LAUNCHER = Path(__file__).resolve().parents[2] / "scripts" / "launch" / "fastdecode-cluster"


class ClusterFailed(FastdecodeError):
    """It did not come up; the launcher has said why."""

    def __init__(self, config, status):
        super().__init__(f"the cluster of {config} did not come up (fastdecode-cluster exited {status})")
        self.exit_status = status if status in (EXIT_USAGE, EXIT_LOST) else EXIT_LOST


class Cluster:
    """The deployment of one config file, by way of the launch script."""

    def __init__(self, config, build=None):
        if not LAUNCHER.exists():
            raise UsageError(f"--config needs {LAUNCHER}, which is in FastDecode's repository; or use --connect")
        if not Path(config).is_file():
            raise UsageError(f"config {config} does not exist")
        self.config = config
        self._build = ["--build", build] if build else []

    def status(self):
        """(API address, secret file) if its S-worker is alive, else None. It may serve without some R-workers."""
        command = [LAUNCHER, "status", "--json", self.config]
        process = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        try:
            status = json.loads(process.stdout)
        except ValueError:
            raise ClusterFailed(self.config, process.returncode) from None
        states = {worker["name"]: worker["state"] for worker in status["workers"]}
        if states.get("sworker") != "alive":
            return None
        missing = sorted(name for name, state in states.items() if state != "alive")
        if missing:
            print(f"fastdecode: warning: {', '.join(missing)} not alive; the others serve", file=sys.stderr)
        return status["sworker"], status["secret_file"]

    def up(self, interrupt=None, output=None):
        """Returns when all is ready. A signal that `interrupt` saw takes back what was started."""
        status = self._run(["up", "--detach", *self._build, self.config], interrupt, output)
        if status != EXIT_DONE:
            raise ClusterFailed(self.config, status)

    def down(self, output=None):
        return self._run(["down", self.config], None, output)

    @staticmethod
    def _run(arguments, interrupt, output):
        # In a session of its own, since a Ctrl-C is ours to handle: `down` must not be cut short.
        process = subprocess.Popen([LAUNCHER, *arguments], stdin=subprocess.DEVNULL, stdout=output or sys.stderr,
                                   start_new_session=True)
        told = False
        while True:
            try:
                return process.wait(0.1)
            except subprocess.TimeoutExpired:
                if interrupt is not None and interrupt.signum and not told:
                    process.terminate()
                    told = True


@contextmanager
def running(config, build, interrupt, output=None):
    """(API address, secret file) of the config's cluster, brought up for the time of the `with` if it is not up."""
    cluster = Cluster(config, build)
    found = cluster.status()
    if found is not None:
        print(f"fastdecode: using the cluster that is up at {found[0]}", file=sys.stderr)
        yield found
        return
    cluster.up(interrupt, output)
    try:
        found = cluster.status()
        if found is None:
            raise ClusterFailed(config, EXIT_LOST)
        yield found
    finally:
        cluster.down(output)


@contextmanager
def connected(args, name, interrupt):
    """A Client by --connect, --config and --secret_file."""
    address, secret_file = args.connect, args.secret_file
    with ExitStack() as stack:
        if args.config:
            address, found = stack.enter_context(running(args.config, args.build, interrupt))
            secret_file = secret_file or found
        if not secret_file:
            raise UsageError("--connect needs --secret_file FILE, the cluster's secret")
        yield stack.enter_context(Client(address, keys.load(secret_file), name))
