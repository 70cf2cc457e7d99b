"""The network cable between two virtual machines: Ethernet frames from one Unix socket to another.

As a switch does, it loses what a receiver does not take in time, so that a machine that is frozen
does not hold up the other one's sending. Cut, it loses everything while both ends see their link up.
"""

import collections
import os
import select
import socket
import threading

QUEUE = 1024  # frames that wait for a receiver
MAX_FRAME = 1 << 16


class Cable:
    def __init__(self, folder, names):
        self._folder = folder
        self._cut = False
        self._sockets = {name: self._bind(name) for name in names}
        threading.Thread(target=self._run, daemon=True).start()

    def of(self, name):
        """Where the machine `name` receives, and where it sends to."""
        return os.path.join(self._folder, name + ".net"), os.path.join(self._folder, name + ".cable")

    def cut(self):
        self._cut = True

    def mend(self):
        self._cut = False

    def _bind(self, name):
        end = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        end.bind(self.of(name)[1])
        end.setblocking(False)
        return end

    def _run(self):
        first, second = self._sockets
        waiting = {first: collections.deque(), second: collections.deque()}  # by who is to receive
        while True:
            # A Unix socket that nobody reads does not say when it could be written again.
            pause = 0.001 if any(waiting.values()) else None
            readable, _, _ = select.select(list(self._sockets.values()), [], [], pause)
            for sender, receiver in ((first, second), (second, first)):
                if self._sockets[sender] in readable:
                    self._take(self._sockets[sender], waiting[receiver])
                self._give(receiver, waiting[receiver])

    def _take(self, end, queue):
        try:
            for _ in range(64):
                frame = end.recv(MAX_FRAME)
                if not self._cut and len(queue) < QUEUE:
                    queue.append(frame)
        except BlockingIOError:
            pass

    def _give(self, receiver, queue):
        try:
            while queue:
                self._sockets[receiver].sendto(queue[0], self.of(receiver)[0])
                queue.popleft()
        except BlockingIOError:
            pass
        except OSError:  # nobody is there
            queue.clear()
