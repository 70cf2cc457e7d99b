"""One connection to an S-worker's API. docs/protocol.md has the messages."""

import os
import time

import msgpack
import zmq
from zmq.utils.monitor import recv_monitor_message

from fastdecode.errors import FastdecodeError, ServerLost, UsageError

PROTOCOL = 1
ANSWER_S = 5.0  # hello and stats are answered at once
SILENCE_S = 4.0  # the server says something every second
MAX_MESSAGE_BYTES = 8 << 20
REQUEST_MESSAGES = ("accepted", "tokens", "finished")
EVENTS = (
    zmq.EVENT_DISCONNECTED
    | zmq.EVENT_CLOSED
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)


def normalize_address(address):
    """tcp://HOST:PORT of that or HOST:PORT."""
    url = address if "://" in address else f"tcp://{address}"
    host, colon, port = url.removeprefix("tcp://").rpartition(":")
    if not url.startswith("tcp://") or not colon or not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise UsageError(f"'{address}' is no API address: expected HOST:PORT or tcp://HOST:PORT")
    return url


class Client:
    """Not for several threads. Use it in a `with`."""

    def __init__(self, address, keys, name="fastdecode"):
        self.address = normalize_address(address)
        self._broken = ""
        self._kept = []
        self._last_heard = time.monotonic()
        self.info = None
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.curve_serverkey = keys.server_public
        self._socket.curve_publickey = keys.client_public
        self._socket.curve_secretkey = keys.client_secret
        self._socket.linger = 0
        self._socket.ipv6 = True
        self._socket.reconnect_ivl = -1  # A server that is gone is an event, not a pause.
        self._socket.rcvhwm = 0  # Reading goes on while Python computes, so heartbeats are answered.
        self._socket.sndhwm = 1 << 17
        self._monitor = self._socket.get_monitor_socket(EVENTS)
        self._monitor.linger = 0
        try:
            self._socket.connect(self.address)
            self._hello(name)
        except zmq.ZMQError as error:
            self.close()
            raise UsageError(f"can't connect to {self.address}: {error}") from None
        except BaseException:
            self.close()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        self._socket.disable_monitor()
        self._monitor.close()
        self._socket.close()
        self._context.term()

    def submit(self, request_id, prompt, **options):
        """`options` are the fields of docs/protocol.md; the server checks them."""
        self._send({"type": "submit", "id": request_id, "prompt": prompt, **options})

    def cancel(self, request_id):
        self._send({"type": "cancel", "id": request_id})

    def stats(self, reset=False):
        """The server's figures. What else comes meanwhile is kept for poll()."""
        self._send({"type": "stats", "reset": reset})
        deadline = time.monotonic() + ANSWER_S
        while time.monotonic() < deadline:
            messages = self._receive(0.1)
            self._kept += [m for m in messages if m["type"] in REQUEST_MESSAGES]
            for message in messages:
                if message["type"] == "stats":
                    return message["stats"]
        raise ServerLost(f"no stats from {self.address} within {ANSWER_S:.0f} s")

    def poll(self, timeout):
        """Messages about requests, none after `timeout` seconds. Raises ServerLost."""
        if self._kept:
            kept, self._kept = self._kept, []
            return kept
        return [m for m in self._receive(timeout) if m["type"] in REQUEST_MESSAGES]

    def _hello(self, name):
        self._send({"type": "hello", "protocol": PROTOCOL, "client": f"{name}, pid {os.getpid()}"})
        deadline = time.monotonic() + ANSWER_S
        while time.monotonic() < deadline:
            for message in self._receive(0.1):
                if message["type"] == "server":
                    self.info = message
                    return
        raise ServerLost(f"no answer from {self.address} within {ANSWER_S:.0f} s: is it an S-worker's API address?")

    def _send(self, message):
        self._check()
        try:
            data = msgpack.packb(message)
        except (OverflowError, TypeError, ValueError) as error:
            raise UsageError(f"can't be sent: {error}") from None
        if len(data) > MAX_MESSAGE_BYTES:
            raise UsageError(f"a message of {len(data)} bytes is longer than the API takes")
        try:
            self._socket.send(data, zmq.DONTWAIT)
        except zmq.ZMQError as error:
            self._check()
            raise ServerLost(f"can't send to {self.address}: {error}") from None

    def _receive(self, timeout):
        messages = self._drain()
        if messages:
            return messages
        self._check()
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        poller.register(self._monitor, zmq.POLLIN)
        poller.poll(timeout * 1000)
        messages = self._drain()
        if not messages:
            self._check()
        return messages

    def _drain(self):
        messages = []
        while True:
            try:
                data = self._socket.recv(zmq.DONTWAIT)
            except zmq.Again:
                return messages
            self._last_heard = time.monotonic()
            message = msgpack.unpackb(data)
            if message["type"] == "error":
                raise self._error(message)
            messages.append(message)

    def _error(self, message):
        text = f"the server at {self.address} says {message['code']}: {message['message']}"
        return UsageError(text) if message["code"] == "bad_version" else ServerLost(text)

    def _check(self):
        """Raises ServerLost once the connection is gone."""
        while self._monitor.poll(0):
            event = recv_monitor_message(self._monitor)["event"]
            self._broken = self._broken or ("closed" if event == zmq.EVENT_CLOSED else "disconnected")
        if self._broken:
            raise self._lost()
        silent = time.monotonic() - self._last_heard
        if self.info is not None and silent > SILENCE_S and not self._socket.poll(0):
            raise ServerLost(
                f"the server at {self.address} has been silent for {silent:.0f} s: it is stopped or unreachable"
            )

    def _lost(self):
        if self.info is not None:
            return ServerLost(f"the server at {self.address} is gone: it closed the connection")
        if self._broken == "closed":
            return ServerLost(f"nobody listens on {self.address}: is the cluster up?")
        return Refused(
            f"the server at {self.address} closed the connection during the handshake: "
            "it has another secret file, or is no FastDecode S-worker"
        )


class Refused(FastdecodeError):
    """The server has another secret."""

    exit_status = UsageError.exit_status
