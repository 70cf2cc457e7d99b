"""What ends a command early."""

EXIT_OK = 0
EXIT_USAGE = 2  # usage, config or a damaged model
EXIT_WORKER = 3  # a worker could not start, or nothing can go on without it


class LaunchError(Exception):
    """One sentence for the user, and the command's exit status."""

    def __init__(self, message, status=EXIT_WORKER):
        super().__init__(message)
        self.status = status


class HostUnreachable(LaunchError):
    """ssh itself failed: nothing is known about what runs there."""


class Interrupted(BaseException):
    """SIGINT, SIGTERM or SIGHUP came. Not an Exception: only who cleans up may catch it."""
