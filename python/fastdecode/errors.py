"""What can go wrong, with the exit status that belongs to it."""

EXIT_DONE = 0
EXIT_SOME_FAILED = 1
EXIT_USAGE = 2
EXIT_LOST = 3


class FastdecodeError(Exception):
    """Said to the user as it is; no traceback."""

    exit_status = EXIT_SOME_FAILED


class UsageError(FastdecodeError):
    """A flag, a config, a file or a request from the user is wrong."""

    exit_status = EXIT_USAGE


class ServerLost(FastdecodeError):
    """No S-worker, or none any more."""

    exit_status = EXIT_LOST


class RequestError(FastdecodeError):
    """One request is wrong or failed: code and message as in a result's "error"."""

    def __init__(self, code, message):
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
