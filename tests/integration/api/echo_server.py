"""Starts the echo server, the S-worker's real API without a model, for the tests beside."""

import os
import secrets
import select
import subprocess
import sys
import tempfile
import time
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[3]
MODEL = REPOSITORY / "models" / "tinystories-656k"
COMMAND = REPOSITORY / "scripts" / "fastdecode"
sys.path.insert(0, str(REPOSITORY / "python"))


class EchoServer:
    """In a `with`. `address`, `secret_file`, `log()`."""

    def __init__(self, program, pass_us=200, max_context=2048):
        self._folder = tempfile.TemporaryDirectory(prefix="fastdecode-api-")
        self.folder = Path(self._folder.name)
        self.secret_file = str(self.new_secret("secret"))
        self._log = open(self.folder / "log", "w", encoding="utf-8")
        self.process = subprocess.Popen(
            [program, "tcp://127.0.0.1:0", self.secret_file, str(MODEL), str(max_context), str(pass_us)],
            stdout=subprocess.PIPE, stderr=self._log, text=True)
        ready, _, _ = select.select([self.process.stdout], [], [], 60)
        line = self.process.stdout.readline() if ready else ""
        if not line.startswith("ready "):
            self.stop()
            raise RuntimeError(f"the echo server did not start: {self.log()}")
        self.address = line.split()[1]
        self.port = int(self.address.rpartition(":")[2])

    def new_secret(self, name):
        path = self.folder / name
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as file:
            file.write(secrets.token_hex(32))
        return path

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()
        self._folder.cleanup()

    def stop(self):
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.process.stdout.close()
        self._log.close()

    def log(self):
        return (self.folder / "log").read_text(encoding="utf-8", errors="replace")

    def await_log(self, text, count=1, seconds=20):
        """The lines with `text`, once there are `count`."""
        deadline = time.monotonic() + seconds
        while True:
            lines = [line for line in self.log().splitlines() if text in line]
            if len(lines) >= count or time.monotonic() > deadline:
                return lines
            time.sleep(0.02)
