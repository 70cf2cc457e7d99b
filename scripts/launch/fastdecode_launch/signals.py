"""Ctrl-C, SIGTERM and a closed terminal become one exception, Interrupted, once.

While workers are being started or taken down a signal must not cut the work in half:
`deferred` holds it back until the block is left, and after the first one the rest are
answered by a line only.
"""

import signal
from contextlib import contextmanager

from .errors import Interrupted

_depth = 0
_pending = False
_raised = False


def _on_signal(number, frame):
    global _pending, _raised
    if _raised:
        print("already taking everything down", flush=True)
    elif _depth > 0:
        _pending = True
    else:
        _raised = True
        raise Interrupted


def install():
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _on_signal)


@contextmanager
def deferred():
    global _depth, _pending, _raised
    _depth += 1
    try:
        yield
    finally:
        _depth -= 1
    if _pending and _depth == 0:
        _pending = False
        _raised = True
        raise Interrupted
