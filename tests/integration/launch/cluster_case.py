"""A test case with a folder, a config and the real launch script."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[3]
SCRIPT = REPOSITORY / "scripts" / "launch" / "fastdecode-cluster"
MODEL = REPOSITORY / "models" / "tinystories-656k-bf16"
PATIENCE_S = 120  # for one step on a busy machine; sanitizers included

programs = None  # the folder of the binaries under test, set by main()


def main():
    """unittest.main for a script that is given the folder of the binaries first."""
    global programs
    programs = os.path.abspath(sys.argv.pop(1))
    unittest.main(module="__main__", verbosity=2)


def is_running(pid):
    """A zombie does not run."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] not in ("Z", "X")


def eventually(condition, what, seconds=PATIENCE_S):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return
        time.sleep(0.05)
    raise AssertionError(f"not within {seconds} s: {what}")


class Foreground:
    """`up` in the foreground, in a session of its own; its output as it comes."""

    def __init__(self, arguments):
        self.text = ""
        self._process = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                         start_new_session=True)
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self):
        with self._process.stdout as lines:
            for line in lines:
                self.text += line

    def wait_for(self, text):
        eventually(lambda: text in self.text or self._process.poll() is not None, f"\"{text}\" in:\n{self.text}")
        if text not in self.text:
            self._reader.join(timeout=5)
        assert text in self.text, f"ended with {self._process.poll()} without \"{text}\":\n{self.text}"

    def send(self, number):
        self._process.send_signal(number)

    def ended(self):
        """Its exit status, once it has ended."""
        status = self._process.wait(timeout=PATIENCE_S)
        self._reader.join()
        return status


class ClusterCase(unittest.TestCase):
    def setUp(self):
        self.folder = Path(tempfile.mkdtemp(prefix="fastdecode-launch-"))
        self.config = self.folder / "cluster.json"
        self._foregrounds = []
        self.pids = set()  # of every worker that a test has seen alive
        self.addCleanup(self._clean_up)

    def _clean_up(self):
        for foreground in self._foregrounds:
            if foreground._process.poll() is None:
                foreground._process.kill()
            foreground._reader.join()
        self.run_script("down", self.config, "--grace", "5")
        shutil.rmtree(self.folder)
        for pid in self.pids:
            self.assertFalse(is_running(pid), f"pid {pid} was left running")

    def write_config(self, **changes):
        """A small deployment on this machine; `changes` replace keys such as rworkers__count."""
        config = {
            "model": {"path": str(MODEL)},
            "sworker": {"threads": 1, "listen": "tcp://127.0.0.1:0"},
            "rworkers": {"count": 2, "threads": 1, "kv_memory": "16MiB"},
            "pipeline": {"max_batch": 4},
        }
        for key, value in changes.items():
            section, _, name = key.partition("__")
            if value is None:
                del config[section][name]
            else:
                config.setdefault(section, {})[name] = value
        self.config.write_text(json.dumps(config))

    def script(self, command, *arguments):
        argv = [sys.executable, str(SCRIPT), command, *map(str, arguments)]
        return argv + (["--build", programs] if command == "up" and "--build" not in arguments else [])

    def run_script(self, command, *arguments):
        return subprocess.run(self.script(command, *arguments), capture_output=True, text=True,
                              timeout=2 * PATIENCE_S)

    def ok(self, command, *arguments):
        done = self.run_script(command, *arguments)
        self.assertEqual(done.returncode, 0, f"{command}:\n{done.stdout}{done.stderr}")
        return done.stdout

    def up(self, *arguments):
        return self.ok("up", "--detach", self.config, *arguments)

    def up_in_foreground(self, *arguments):
        self._foregrounds.append(Foreground(self.script("up", self.config, *arguments)))
        self._foregrounds[-1].wait_for("Ctrl-C ends them")
        return self._foregrounds[-1]

    def workers(self):
        """{name: worker} as status --json tells it; remembers the pids."""
        done = self.run_script("status", "--json", self.config)
        workers = {worker["name"]: worker for worker in json.loads(done.stdout)["workers"]}
        self.pids |= {int(worker["detail"]) for worker in workers.values() if worker["state"] == "alive"}
        return workers

    def pid(self, name):
        worker = self.workers()[name]
        self.assertEqual(worker["state"], "alive", worker)
        return int(worker["detail"])

    def kill(self, name, number=signal.SIGKILL):
        os.kill(self.pid(name), number)

    def assert_fails(self, status, *texts, command="up", arguments=("--detach",)):
        done = self.run_script(command, *arguments, self.config)
        output = done.stdout + done.stderr
        self.assertEqual(done.returncode, status, output)
        for text in texts:
            self.assertIn(text, output)
        return output

    def assert_down(self, *pids):
        for pid in pids:
            self.assertFalse(is_running(pid), f"pid {pid} is still running")
        self.assertEqual(self.workers(), {})

    @staticmethod
    def pids_in(text):
        return [int(pid) for pid in re.findall(r" pid (\d+)", text)]


def listener():
    """A socket that occupies a port of 127.0.0.1."""
    taken = socket.socket()
    taken.bind(("127.0.0.1", 0))
    taken.listen()
    return taken
