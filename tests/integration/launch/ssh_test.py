"""The launch script with R-workers behind ssh: an sshd of our own on loopback."""

import getpass
import os
import shutil
import signal
import subprocess
import unittest
from pathlib import Path

import cluster_case
from cluster_case import ClusterCase, eventually, is_running, listener

SSHD = shutil.which("sshd", path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")


def free_port():
    with listener() as socket:
        return socket.getsockname()[1]


class Sshd:
    """An sshd with its own keys, port and client configuration, all in one folder."""

    def __init__(self, folder):
        self.folder = folder
        self.client_config = folder / "ssh_config"
        self._port = free_port()
        self._process = None
        for key in ("host_key", "user_key"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / key)], check=True)
        shutil.copy(folder / "user_key.pub", folder / "authorized_keys")
        host_key = (folder / "host_key.pub").read_text()
        (folder / "known_hosts").write_text(f"[127.0.0.1]:{self._port} {host_key}")
        (folder / "sshd_config").write_text(
            f"Port {self._port}\nListenAddress 127.0.0.1\nHostKey {folder}/host_key\nPidFile none\nUsePAM no\n"
            f"AuthorizedKeysFile {folder}/authorized_keys\nStrictModes no\nPasswordAuthentication no\n")
        self.client_config.write_text(
            f"Host cpu01 cpu02\n HostName 127.0.0.1\n Port {self._port}\n User {getpass.getuser()}\n"
            f" IdentityFile {folder}/user_key\n IdentitiesOnly yes\n UserKnownHostsFile {folder}/known_hosts\n"
            f"Host nowhere\n HostName 127.0.0.1\n Port {free_port()}\n")

    def start(self):
        if self._process is not None:
            return
        if os.getuid() == 0:
            os.makedirs("/run/sshd", exist_ok=True)  # sshd refuses to start as root without
        self._process = subprocess.Popen(
            [SSHD, "-D", "-f", str(self.folder / "sshd_config"), "-E", str(self.folder / "sshd.log")],
            start_new_session=True)
        eventually(self._answers, "sshd's answer", 20)

    def _answers(self):
        return subprocess.run(["ssh", "-F", str(self.client_config), "-o", "BatchMode=yes", "cpu01", "true"],
                              capture_output=True).returncode == 0

    def kill(self):
        """Ends sshd and every connection."""
        if self._process is None:
            return
        # sshd's child a connection, and that one's own, which carries the session.
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()
        self._process.kill()
        self._process.wait()
        for child in children:
            try:
                os.kill(int(child), signal.SIGKILL)
            except ProcessLookupError:
                pass
        self._process = None


@unittest.skipUnless(SSHD and shutil.which("ssh"), "needs openssh's sshd and ssh (Debian: openssh-server)")
class Remote(ClusterCase):
    def setUp(self):
        super().setUp()
        self.sshd = Sshd(self.folder)
        self.sshd.start()
        self.ports = [free_port(), free_port()]

    def _clean_up(self):
        try:
            self.sshd.start()  # `down` needs it, whatever the test did
            super()._clean_up()
        finally:
            self.sshd.kill()

    def remote_config(self, *ssh, **host):
        hosts = [{"address": f"127.0.0.1:{port}", **({"ssh": name} if name else {}), **host}
                 for name, port in zip(ssh, self.ports)]
        self.write_config(rworkers__count=None, rworkers__hosts=hosts)

    def up(self, *arguments):
        return super().up("--ssh-config", self.sshd.client_config, *arguments)

    def remote_folders(self):
        return list(Path(f"/tmp/fastdecode-{os.getuid()}").glob("*-remote"))

    def test_from_up_to_down(self):
        self.remote_config("cpu01", "cpu02")
        before = self.remote_folders()
        text = self.up()
        self.assertIn("by ssh cpu01", text)
        workers = self.workers()
        self.assertEqual([worker["host"] for worker in workers.values()], ["cpu01", "cpu02", ""])
        pids = [int(worker["detail"]) for worker in workers.values()]
        self.assertTrue(all(map(is_running, pids)))
        self.assertIn("ready fastdecode-rworker", self.ok("logs", self.config, "rworker-0"))

        secret = (self.folder / "cluster.secret").read_text().strip()
        folder = (set(self.remote_folders()) - set(before)).pop()
        self.assertEqual((folder / "secret").read_text().strip(), secret)
        self.assertEqual((folder / "secret").stat().st_mode & 0o777, 0o600)
        for pid in pids:
            self.assertNotIn(secret, Path(f"/proc/{pid}/cmdline").read_text())

        self.ok("down", self.config)
        self.assert_down(*pids)
        self.assertEqual(self.remote_folders(), before)

    def test_local_and_remote_together_with_one_restarted(self):
        self.remote_config("", "cpu01")
        foreground = self.up_in_foreground("--ssh-config", self.sshd.client_config)
        before = self.workers()
        self.kill("rworker-1")
        foreground.wait_for("rworker-1 (")
        self.assertIn("was killed by SIGKILL", foreground.text)
        self.ok("restart", self.config, "rworker-1")
        foreground.wait_for("rworker-1 is back")
        after = self.workers()
        self.assertEqual(after["rworker-1"]["address"], before["rworker-1"]["address"])
        foreground.send(signal.SIGINT)
        self.assertEqual(foreground.ended(), 0, foreground.text)
        self.assert_down(*[int(worker["detail"]) for worker in after.values()])

    def test_down_works_after_the_connection_is_gone(self):
        self.remote_config("cpu01")
        foreground = self.up_in_foreground("--ssh-config", self.sshd.client_config)
        pids = self.pids_in(foreground.text)
        self.sshd.kill()
        foreground.wait_for("lost sight of cpu01")
        self.assertTrue(is_running(pids[0]))
        done = self.run_script("status", self.config)
        self.assertEqual(done.returncode, 3)
        self.assertIn("cannot be reached by ssh", done.stdout)

        self.sshd.start()
        foreground.wait_for("cpu01 can be reached again")
        foreground.send(signal.SIGKILL)
        foreground.ended()
        self.ok("down", self.config)
        self.assert_down(*pids)

    def test_down_that_cannot_reach_a_host_says_so_and_can_be_repeated(self):
        self.remote_config("cpu01")
        self.up()
        pids = [self.pid("rworker-0"), self.pid("sworker")]
        self.sshd.kill()
        done = self.run_script("down", self.config)
        self.assertEqual(done.returncode, 3)
        self.assertIn("rworker-0  LEFT RUNNING: cpu01 cannot be reached by ssh", done.stdout)
        self.assertTrue(is_running(pids[0]))
        self.assertFalse(is_running(pids[1]))
        self.sshd.start()
        self.ok("down", self.config)
        self.assert_down(*pids)

    def test_what_cannot_start_is_told_clearly(self):
        self.remote_config("cpu01", bin="/nowhere/bin")
        self.assert_fails(3, "rworker-0 could not be started: /nowhere/bin/fastdecode-rworker: no such program on",
                          "rworkers.hosts[].bin", arguments=("--detach", "--ssh-config", self.sshd.client_config))
        self.remote_config("nowhere")
        self.assert_fails(3, "nowhere cannot be reached by ssh",
                          arguments=("--detach", "--ssh-config", self.sshd.client_config))

    def test_taken_port(self):
        with listener() as taken:
            self.ports[1] = taken.getsockname()[1]
            self.remote_config("cpu01", "cpu02")
            text = self.assert_fails(3, "the end of rworker-1's log", "rworker-1 could not start",
                                     arguments=("--detach", "--ssh-config", self.sshd.client_config))
            self.assert_down(*self.pids_in(text))


if __name__ == "__main__":
    cluster_case.main()
