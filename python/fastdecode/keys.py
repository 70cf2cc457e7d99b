"""CURVE keys of the API, derived from the cluster's secret as docs/protocol.md states."""

import hashlib
import os
import stat
from dataclasses import dataclass

import zmq
from zmq.utils import z85

from fastdecode.errors import UsageError

MIN_SECRET_BYTES = 32
MAX_SECRET_BYTES = 4096


@dataclass(frozen=True)
class Keys:
    """Z85 texts, as ZeroMQ takes them."""

    server_public: bytes
    client_public: bytes
    client_secret: bytes


def _key_pair(secret, purpose):
    seed = hashlib.blake2b(purpose, key=secret, digest_size=32).digest()
    private = z85.encode(hashlib.sha512(seed).digest()[:32])
    return zmq.curve_public(private), private


def derive(secret):
    """Keys from the 32 bytes of a secret."""
    server_public, _ = _key_pair(secret, b"fastdecode api server")
    client_public, client_secret = _key_pair(secret, b"fastdecode api client")
    return Keys(server_public, client_public, client_secret)


def load(path):
    """Keys from a secret file, which only its owner may read."""
    try:
        with open(path, "rb", opener=lambda p, flags: os.open(p, flags | os.O_NONBLOCK)) as file:
            mode = os.fstat(file.fileno()).st_mode
            if not stat.S_ISREG(mode):
                raise UsageError(f"secret file {path} is not a regular file")
            if mode & 0o077:
                raise UsageError(
                    f"secret file {path} has mode {stat.S_IMODE(mode):04o}, so others than its owner may use it; "
                    f"expected 0600: chmod 600 '{path}', and make a new secret if it may have been read"
                )
            content = file.read(MAX_SECRET_BYTES + 1)
    except FileNotFoundError:
        raise UsageError(f"secret file {path} does not exist; fastdecode-cluster up creates it") from None
    except OSError as error:
        raise UsageError(f"secret file {path} cannot be read: {error.strerror}") from None
    secret = content.strip(b" \t\r\n\v\f")
    if len(content) > MAX_SECRET_BYTES or len(secret) < MIN_SECRET_BYTES:
        raise UsageError(
            f"secret file {path} holds {len(secret)} bytes without the white space around them; "
            f"expected {MIN_SECRET_BYTES} to {MAX_SECRET_BYTES}"
        )
    return derive(hashlib.blake2b(secret, digest_size=32).digest())
