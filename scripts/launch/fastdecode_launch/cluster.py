"""Starts, stops and asks the workers of one cluster."""

import queue
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor

from . import signals
from .errors import EXIT_USAGE, EXIT_WORKER, HostUnreachable, LaunchError
from .hosts import Host, LineReader

LOG_TAIL_LINES = 20
DIED, TOO_SLOW = 1, 2  # exit statuses of worker.sh's launch
STILL_WAITING_S = 15


def exit_text(status):
    """What worker.sh knows about how a worker ended."""
    if status == "-":
        return "is gone"
    code = int(status)
    if code <= 128:
        return f"ended with status {code}"
    try:
        return f"was killed by {signal.Signals(code - 128).name}"
    except ValueError:
        return f"ended with status {code}"


class Cluster:
    """The workers of a State. `say` prints one line for the user."""

    def __init__(self, folder, state, say):
        self.folder = folder
        self.state = state
        self.say = say
        self._hosts = {}

    def host(self, worker):
        if worker.ssh not in self._hosts:
            self._hosts[worker.ssh] = Host(self.folder.key, worker.ssh, self.state.ssh_config)
        return self._hosts[worker.ssh]

    def by_host(self):
        """{Host: its workers}"""
        groups = {}
        for worker in self.state.workers:
            groups.setdefault(self.host(worker), []).append(worker)
        return groups

    def states(self):
        """{name: ("alive", pid) | ("dead", exit status or "-") | ("unreachable", why)}"""
        def ask(item):
            host, workers = item
            names = [worker.name for worker in workers]
            try:
                status, out, err = host.call("state", *names)
                if status != 0:
                    raise HostUnreachable(f"{host.name}: {err.strip()}")
            except HostUnreachable as error:
                return {name: ("unreachable", str(error)) for name in names}
            return {name: (word, value) for name, word, value in map(str.split, out.splitlines())}

        found = {}
        with ThreadPoolExecutor() as pool:
            for part in pool.map(ask, self.by_host().items()):
                found.update(part)
        return {worker.name: found[worker.name] for worker in self.state.workers}

    def show_log(self, worker):
        try:
            _, out, _ = self.host(worker).call("tail", worker.name, LOG_TAIL_LINES)
        except HostUnreachable as error:
            out = str(error)
        self.say(f"--- the end of {worker.name}'s log")
        for line in out.splitlines() or ["(empty)"]:
            self.say("  " + line)
        self.say("---")

    def start(self, workers, timeout):
        """Starts workers side by side and waits until each is ready.

        The first that fails ends the wait: its log is shown and a LaunchError raised.
        """
        launches = []
        try:
            with signals.deferred():
                for worker in workers:
                    launches.append(Launch(self.host(worker), worker, timeout, self.state.secret_file))
            self._await_ready(launches)
        except BaseException:
            for launch in launches:
                launch.abandon()
            raise

    def _await_ready(self, launches):
        waiting = set(launches)
        next_note = time.monotonic() + STILL_WAITING_S
        while waiting:
            for launch in [launch for launch in waiting if launch.advance()]:
                waiting.remove(launch)
                if launch.ready_line is None:
                    self._fail(launch)
                words = launch.ready_line.split()
                # ready PROGRAM ADDRESS: with port 0 only this line knows the port.
                if launch.worker.name == "sworker" and len(words) > 2:
                    launch.worker.address = words[2]
                self.say(f"{launch.worker.name:<10} ready  {launch.worker.address:<24} pid {launch.pid:<8}"
                         f"{launch.worker.about}")
            if time.monotonic() > next_note:
                next_note += STILL_WAITING_S
                self.say("still waiting for " + ", ".join(sorted(launch.worker.name for launch in waiting)))
            time.sleep(0.02)

    def _fail(self, launch):
        worker, status, err = launch.worker, launch.status, launch.err
        self.host(worker).check_reached(status, err)
        if status not in (DIED, TOO_SLOW):
            hint = "; rworkers.hosts[].bin names the folder there" if worker.ssh and "no such program" in err else ""
            raise LaunchError(f"{worker.name} could not be started: {err.strip()}{hint}")
        self.show_log(worker)
        if status == TOO_SLOW:
            raise LaunchError(f"{worker.name} was not ready within {launch.timeout} s (--timeout)")
        word, value = self.states()[worker.name]
        how = exit_text(value) if word == "dead" else "is gone"
        # Status 2 is the worker's word for a config or a model that will not do.
        raise LaunchError(f"{worker.name} could not start: it {how}", EXIT_USAGE if value == "2" else EXIT_WORKER)

    def stop(self, grace):
        """Takes every worker down, the S-worker first: its requests still get their answer.

        Gives the names of those that could not be stopped.
        """
        left = []
        rworkers = self.state.rworkers()
        for group in (self.state.workers[len(rworkers):], rworkers):
            with ThreadPoolExecutor() as pool:
                for worker, outcome in zip(group, pool.map(lambda w: self._stop_one(w, grace), group)):
                    if outcome in ("stopped", "killed"):
                        forced = f"  did not end within {grace} s of SIGTERM, so it was killed"
                        self.say(f"{worker.name:<10} stopped" + (forced if outcome == "killed" else ""))
                    elif outcome != "gone":
                        self.say(f"{worker.name:<10} LEFT RUNNING: {outcome}")
                        left.append(worker.name)
        return left

    def _stop_one(self, worker, grace):
        try:
            status, out, err = self.host(worker).call("stop", worker.name, grace, timeout=grace + 30)
        except HostUnreachable as error:
            return str(error)
        if status != 0:
            return err.strip()
        return "it does not react to SIGKILL" if out.strip() == "stuck" else out.strip()

    def stop_one(self, worker, grace):
        outcome = self._stop_one(worker, grace)
        if outcome not in ("gone", "stopped", "killed"):
            raise LaunchError(f"{worker.name} could not be stopped: {outcome}")

    def clean(self, local=True):
        """Removes the run folders, with secrets and logs, on every host; the local one last."""
        for host in sorted(self.by_host(), key=lambda host: host.ssh == ""):
            if not host.ssh and not local:
                continue
            try:
                host.call("clean")
            except HostUnreachable as error:
                self.say(f"{host.name}: its run folder was not removed: {error}")


class Launch:
    """One worker on its way: worker.sh's launch as a process, and what it has said so far."""

    def __init__(self, host, worker, timeout, secret_file):
        self.worker = worker
        self.timeout = timeout
        self.pid = None
        self.ready_line = None
        self.status = None
        self.err = ""
        self._lines = queue.Queue()
        remote = bool(worker.ssh)
        self._process = host.popen("launch", worker.name, worker.cpus, timeout, "stdin" if remote else "-",
                                   *worker.argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True, errors="replace")
        self._reader = LineReader(self._process, self._lines.put)
        try:
            with self._process.stdin as pipe:
                if remote:  # never on a command line, where everybody could read it
                    with open(secret_file) as secret:
                        pipe.write(secret.read())
        except BrokenPipeError:
            pass  # its exit status and stderr say why
        except OSError as error:
            self._process.kill()
            raise LaunchError(f"transport.secret_file: {secret_file}: {error.strerror}", EXIT_USAGE) from None

    def _take(self, line):
        if line is None:
            self.err = self._process.stderr.read()
            self.status = self._process.wait()
        elif line.startswith("pid "):
            self.pid = line[4:]
        elif line.startswith("ready "):
            self.ready_line = line

    def advance(self):
        """Reads what has come; True once it is over, one way or the other."""
        while not self._lines.empty():
            self._take(self._lines.get())
        return self.status is not None

    def abandon(self):
        """Leaves no start behind that a stop could overtake: waits for the pid, then gives up."""
        deadline = time.monotonic() + 10
        while self.pid is None and not self.advance() and time.monotonic() < deadline:
            time.sleep(0.02)
        self._process.kill()
        self._process.wait()
