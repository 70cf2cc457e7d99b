"""The foreground of `up`: says which worker died, ends when the S-worker does."""

import queue
import subprocess
import threading

from .cluster import exit_text
from .errors import EXIT_OK, EXIT_WORKER

RECONNECT_S = 2


class HostWatch(threading.Thread):
    """Hears the states of one host's workers, a line each a second; reconnects when the link breaks."""

    def __init__(self, host, names, events):
        super().__init__(daemon=True)
        self.host = host
        self._names = names
        self._events = events  # of (self, line); None: the link broke
        self._stopped = threading.Event()
        self._process = None
        self.start()

    def run(self):
        while not self._stopped.is_set():
            self._process = self.host.popen("watch", *self._names, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                            stderr=subprocess.DEVNULL, text=True, errors="replace")
            for line in self._process.stdout:
                self._events.put((self, line))
                if self._stopped.is_set():
                    self._process.kill()
            self._process.wait()
            self._events.put((self, None))
            self._stopped.wait(RECONNECT_S)

    def stop(self):
        self._stopped.set()
        if self._process is not None:
            self._process.kill()
        self.join(timeout=5)


class Watch:
    def __init__(self, cluster):
        self._cluster = cluster
        self._dead = set()
        self._lost_hosts = set()

    def run(self):
        """Watches until the S-worker or the whole cluster is gone; gives the command's exit status."""
        events = queue.SimpleQueue()
        watches = [HostWatch(host, [worker.name for worker in workers], events)
                   for host, workers in self._cluster.by_host().items()]
        try:
            while True:
                status = self._handle(*events.get())
                if status is not None:
                    return status
        finally:
            for watch in watches:
                watch.stop()

    def _handle(self, watch, line):
        host = watch.host
        if line is None:
            if host not in self._lost_hosts:
                self._lost_hosts.add(host)
                self._cluster.say(f"lost sight of {host.name}; trying again, its workers may be well")
            return None
        if host in self._lost_hosts:
            self._lost_hosts.remove(host)
            self._cluster.say(f"{host.name} can be reached again")
        name, word, value = line.split()
        if word == "alive" and name in self._dead:
            self._dead.remove(name)
            self._cluster.say(f"{name} is back, pid {value}")
        if word == "dead" and name not in self._dead:
            return self._on_death(name)
        return None

    def _on_death(self, name):
        folder = self._cluster.folder
        # Another terminal may be taking the cluster down or restarting this worker: let it finish, then look.
        with folder.lock(lambda text: None):
            if folder.load() is None:
                self._cluster.say("taken down by another fastdecode-cluster command")
                return EXIT_OK
            word, value = self._cluster.states()[name]
        if word != "dead":
            return None
        self._dead.add(name)
        worker = self._cluster.state.worker(name)
        self._cluster.show_log(worker)
        if name == "sworker":
            self._cluster.say(f"sworker {exit_text(value)}; nothing can go on without it")
            return EXIT_WORKER
        self._cluster.say(f"{name} ({worker.address}) {exit_text(value)}; the others go on. Bring it back with: "
                          f"fastdecode-cluster restart {folder.config} {name}")
        return None
