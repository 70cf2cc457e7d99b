"""Whoever comes to the API's port with the wrong thing is refused, with a reason in the log, and harms nobody.

    hostile_test.py ECHO_SERVER
"""

import random
import socket
import sys
import time
import unittest

import msgpack
import zmq
from echo_server import EchoServer

from fastdecode import keys
from fastdecode.client import Client, Refused

PROGRAM = sys.argv[1]
PEER = r"from (127\.0\.0\.1:\d+|a peer that is already gone): "
GREETING = bytes.fromhex("ff00000000000000017f0300") + b"CURVE".ljust(20, b"\0") + b"\0" * 32


class RawClient:
    """A DEALER that sends what it is told, past the package's own care."""

    def __init__(self, server, derived=None, hello=True, rcvhwm=0):
        derived = derived or keys.load(server.secret_file)
        self.context = zmq.Context()
        self.socket = self.context.socket(zmq.DEALER)
        self.socket.linger = 0
        self.socket.rcvhwm = rcvhwm
        if derived != "plain":
            self.socket.curve_serverkey = derived.server_public
            self.socket.curve_publickey = derived.client_public
            self.socket.curve_secretkey = derived.client_secret
        self.socket.connect(server.address)
        if hello:
            self.send({"type": "hello", "protocol": 1, "client": "raw"})
            assert self.receive()["type"] == "server"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()
        self.context.term()

    def send(self, message):
        self.socket.send(message if isinstance(message, bytes) else msgpack.packb(message))

    def receive(self, seconds=10):
        """The next message that is no heartbeat; None after the time."""
        deadline = time.monotonic() + seconds
        while self.socket.poll(max(0, (deadline - time.monotonic()) * 1000)):
            message = msgpack.unpackb(self.socket.recv())
            if message["type"] != "heartbeat":
                return message
        return None


class Hostile(unittest.TestCase):
    def setUp(self):
        self.server = EchoServer(PROGRAM)
        self.addCleanup(self.server.__exit__)

    def assert_alive(self):
        """An honest client is served."""
        with Client(self.server.address, keys.load(self.server.secret_file)) as client:
            client.submit(1, [5, 6], max_tokens=3)
            while True:
                for message in client.poll(10):
                    if message["type"] == "finished":
                        self.assertEqual([5, 6, 5], message["token_ids"])
                        return

    def assert_refused_once(self, reason):
        lines = self.server.await_log("refused")
        self.assertEqual(1, len(lines), self.server.log())
        self.assertIn(reason, lines[0])
        self.assertRegex(lines[0], PEER)
        self.assert_alive()

    def test_another_secret(self):
        with self.assertRaisesRegex(Refused, "another secret"):
            Client(self.server.address, keys.load(self.server.new_secret("other")))
        self.assert_refused_once("does not know the secret")

    def test_the_servers_public_key_alone_is_not_enough(self):
        right = keys.load(self.server.secret_file)
        wrong = keys.load(self.server.new_secret("other"))
        mixed = keys.Keys(right.server_public, wrong.client_public, wrong.client_secret)
        with RawClient(self.server, mixed, hello=False) as client:
            client.send({"type": "hello", "protocol": 1})
            self.assertIsNone(client.receive(0.5))
        self.assertIn("its key is not the clients'", self.server.await_log("refused")[0])
        self.assert_alive()

    def test_no_encryption(self):
        with RawClient(self.server, "plain", hello=False) as client:
            client.send({"type": "hello", "protocol": 1})
            self.assertIsNone(client.receive(0.5))
        # Either end may notice first.
        self.assertRegex(self.server.await_log("refused")[0], "it came without CURVE|ended during the handshake")
        with socket.create_connection(("127.0.0.1", self.server.port)) as peer:
            peer.sendall(GREETING.replace(b"CURVE", b"NULL\0"))
            self.assertTrue(self.server.await_log("it came without CURVE encryption"))
        self.assert_alive()

    def test_bytes_that_are_no_protocol(self):
        generator = random.Random(11)
        attacks = [
            b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
            generator.randbytes(4096),
            b"\xff" + generator.randbytes(200),
            GREETING + b"\x06" + (2**63).to_bytes(8, "big") + b"x" * 100,  # a command's length
            GREETING + b"\x02" + (2**63 - 1).to_bytes(8, "big"),  # a message's
            GREETING + b"\x04\x05\x05HELLO",
            GREETING[:30],  # cut short
            b"",
        ]
        for number, attack in enumerate(attacks, 1):
            with socket.create_connection(("127.0.0.1", self.server.port)) as peer:
                peer.settimeout(10)
                try:
                    peer.sendall(attack)
                    peer.shutdown(socket.SHUT_WR)
                    while peer.recv(4096):
                        pass
                except OSError as error:
                    self.assertNotIsInstance(error, TimeoutError)  # closed by the server: well done
            lines = self.server.await_log("refused a connection", number)
            self.assertEqual(number, len(lines), (attack[:20], self.server.log()))
            self.assertRegex(lines[-1], PEER)
        self.assert_alive()

    def test_a_silent_connection_is_not_kept(self):
        with socket.create_connection(("127.0.0.1", self.server.port)) as peer:
            peer.settimeout(20)
            while peer.recv(4096):
                pass
        self.assert_refused_once("did not complete the handshake within 5 s")

    def test_another_version(self):
        with RawClient(self.server, hello=False) as client:
            client.send({"type": "hello", "protocol": 2})
            error = client.receive()
            self.assertEqual("bad_version", error["code"])
            client.send({"type": "submit", "id": 1, "prompt": [1]})
            self.assertEqual("no_hello", client.receive()["code"])
        self.assertIn("API protocol 2, this server 1", self.server.await_log("refused")[0])
        self.assert_alive()

    def test_messages_that_can_not_be_believed(self):
        cases = [
            (b"\xc1", "bad_message"),
            (b"", "bad_message"),
            (b"\x91" * 100000, "nested deeper"),
            (b"\xdd\xff\xff\xff\xff", "claims 4294967295"),
            ([1, 2], "must be a map"),
            ({"type": "submitt"}, "'submit'"),
            ({"type": "cancel", "id": "x"}, "id must be an integer"),
            ({"type": "stats", "rest": True}, "nearest known one is 'reset'"),
        ]
        with RawClient(self.server) as client:
            for message, reason in cases:
                client.send(message)
                error = client.receive()
                self.assertEqual(("error", "bad_message"), (error["type"], error["code"]))
                self.assertIn(reason, error["code"] + " " + error["message"])
            self.assertEqual(len(cases), len(self.server.await_log("refused a message", len(cases))))
        self.assert_alive()

    def test_a_bad_submit_ends_that_request(self):
        with RawClient(self.server) as client:
            client.send({"type": "submit", "id": 9, "prompt": [1], "max_token": 3})
            answer = client.receive()
            self.assertEqual(("finished", 9, "error"), (answer["type"], answer["id"], answer["finish_reason"]))
            self.assertIn("'max_tokens'", answer["error"]["message"])
            client.send({"type": "submit", "id": 1, "prompt": [7], "max_tokens": 2000, "stream": False})
            self.assertEqual("accepted", client.receive()["type"])
            client.send({"type": "submit", "id": 1, "prompt": [8], "max_tokens": 5})
            answer = client.receive()
            self.assertEqual(("error", "duplicate_id", 1), (answer["type"], answer["code"], answer["id"]))
            answer = client.receive()
            self.assertEqual([7] * 2000, answer["token_ids"])

    def test_a_message_that_is_too_long(self):
        with RawClient(self.server) as client:
            client.send(b"\0" * (9 << 20))
            self.assertIsNone(client.receive(0.5))
        self.assertEqual(1, len(self.server.await_log("closed")))
        self.assert_alive()

    def test_mutated_messages(self):
        generator = random.Random(5)
        valid = msgpack.packb({"type": "submit", "id": 3, "prompt": [1, 2, 3], "max_tokens": 2, "stop_ids": [4]})
        with RawClient(self.server) as client:
            for _ in range(2000):
                data = bytearray(valid)
                for _ in range(generator.randint(1, 4)):
                    data[generator.randrange(len(data))] = generator.randrange(256)
                client.send(bytes(data[: generator.randint(1, len(data))]))
            answers = 0
            while client.receive(1) is not None:
                answers += 1
            self.assertGreater(answers, 1900)
        self.assert_alive()


class Slow(unittest.TestCase):
    def test_a_client_that_does_not_read_is_cancelled_and_delays_nobody(self):
        with EchoServer(PROGRAM, pass_us=1000, max_context=1 << 20) as server:
            with RawClient(server, rcvhwm=1) as slow:
                for i in range(200):
                    slow.send({"type": "submit", "id": i, "prompt": list(range(100)), "max_tokens": 1 << 20})
                with Client(server.address, keys.load(server.secret_file)) as client:
                    deadline = time.monotonic() + 30
                    served = 0
                    while client.stats()["running"] or not served:
                        self.assertLess(time.monotonic(), deadline)
                        client.submit(served, [5], max_tokens=2)
                        while not any(m["type"] == "finished" for m in client.poll(5)):
                            self.assertLess(time.monotonic(), deadline)
                        served += 1
                    self.assertEqual(200, client.stats()["cancelled"])
            lines = [line for line in server.log().splitlines() if "200 requests of it cancelled" in line]
            self.assertEqual(1, len(lines), server.log())
            self.assertIn("'raw' at 127.0.0.1", lines[0])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
