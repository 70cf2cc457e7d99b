"""Which S-worker to talk to: one that runs, or a cluster brought up for the call."""

import json
import os
import signal
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from fastdecode import keys
from fastdecode.client import Client
from fastdecode.errors import ServerLost, UsageError

LAUNCHER = Path(__file__).resolve().parents[2] / "scripts" / "launch" / "fastdecode-cluster"


@dataclass(frozen=True)
class Deployment:
    """What a client needs of a config file; the rest is the cluster's own matter."""

    path: str
    address: str
    secret_file: str
    model_path: str


def read_config(path):
    try:
        with open(path, encoding="utf-8") as file:
            config = json.load(file)
        folder = Path(path).resolve().parent
        return Deployment(
            path=path,
            address=config.get("sworker", {}).get("listen", "tcp://127.0.0.1:7100"),
            secret_file=str(folder / config.get("transport", {}).get("secret_file", "cluster.secret")),
            model_path=str(folder / config["model"]["path"]),
        )
    except OSError as error:
        raise UsageError(f"config {path} cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"config {path} is no cluster's config: {error}") from None


def _launch(action, *arguments):
    if not LAUNCHER.exists():
        raise UsageError(f"--config needs {LAUNCHER}, which is in FastDecode's repository; or use --connect")
    # A Ctrl-C is ours to handle: the launcher must live to take the cluster down.
    command = [str(LAUNCHER), action, *arguments]
    return subprocess.run(command, stdin=subprocess.DEVNULL, stdout=sys.stderr, start_new_session=True).returncode


@contextmanager
def running(config):
    """A cluster that is up for the time of the `with`."""
    try:
        status = _launch("up", "--detach", config)
        if status:
            error = ServerLost(f"the cluster of {config} did not come up (fastdecode-cluster exited {status})")
            error.exit_status = status if status in (2, 3) else ServerLost.exit_status
            raise error
        yield
    finally:
        # Nothing may cut this short, or processes stay behind.
        previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            _launch("down", config)
        finally:
            signal.signal(signal.SIGINT, previous)


def _is_up(deployment):
    """Whether an S-worker with the config's secret answers at the config's address already."""
    if not os.path.exists(deployment.secret_file):
        return False
    try:
        with Client(deployment.address, keys.load(deployment.secret_file), "fastdecode"):
            return True
    except ServerLost:
        return False


@contextmanager
def connected(args, name):
    """A Client by --connect, --config and --secret_file; brings the config's cluster up if none is."""
    if not args.connect and not args.config:
        raise UsageError("one of --connect ADDR and --config FILE is needed")
    deployment = read_config(args.config) if args.config else None
    secret_file = args.secret_file or (deployment.secret_file if deployment else None)
    if not secret_file:
        raise UsageError("--connect needs --secret_file FILE, the cluster's secret")
    with ExitStack() as stack:
        if not args.connect:
            if _is_up(deployment):
                print(f"using the cluster that is up at {deployment.address}", file=sys.stderr)
            else:
                stack.enter_context(running(args.config))
        address = args.connect or deployment.address
        yield stack.enter_context(Client(address, keys.load(secret_file), name))
