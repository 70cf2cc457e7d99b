"""Ctrl-C and SIGTERM as something that a loop looks at, so that requests end in order."""

import signal


class Interrupt:
    """In a `with`: the first signal sets `signum`; a second one ends the process at once."""

    def __init__(self):
        self.signum = 0
        self._previous = {}

    def __enter__(self):
        for signum in (signal.SIGINT, signal.SIGTERM):
            self._previous[signum] = signal.signal(signum, self._on_signal)
        return self

    def __exit__(self, *_):
        for signum, handler in self._previous.items():
            signal.signal(signum, handler)

    def _on_signal(self, signum, _frame):
        self.signum = signum
        for each in self._previous:
            signal.signal(each, signal.SIG_DFL)

    @property
    def exit_status(self):
        return 128 + self.signum
