"""The launch script with real workers on this machine."""

import json
import os
import re
import shutil
import signal
import stat
import subprocess
from pathlib import Path

import cluster_case
from cluster_case import MODEL, ClusterCase, eventually, is_running, listener


class UpAndDown(ClusterCase):
    def test_detached_from_up_to_down(self):
        self.write_config()
        text = self.up()
        self.assertIn("created the secret", text)
        secret = self.folder / "cluster.secret"
        self.assertEqual(stat.S_IMODE(secret.stat().st_mode), 0o600)
        self.assertRegex(secret.read_text(), r"^[0-9a-f]{64}\n$")

        workers = self.workers()
        self.assertEqual(list(workers), ["rworker-0", "rworker-1", "sworker"])
        pids = [int(worker["detail"]) for worker in workers.values()]
        self.assertEqual(set(pids), set(self.pids_in(text)))
        for worker in workers.values():
            self.assertIn(worker["name"].rstrip("-01"), os.readlink(f"/proc/{worker['detail']}/exe"))
        self.assertEqual(len({worker["address"] for worker in workers.values()}), 3)
        self.assertRegex(workers["sworker"]["address"], r"^tcp://127\.0\.0\.1:[1-9][0-9]*$")

        status = self.ok("status", self.config)
        for worker in workers.values():
            self.assertRegex(status, rf"{worker['name']} +alive +{worker['address']} +pid {worker['detail']}")
        self.assertIn("ready fastdecode-rworker", self.ok("logs", self.config, "rworker-1"))
        self.assertIn("ready fastdecode-sworker", self.ok("logs", self.config))

        self.assertIn("sworker    stopped\nrworker-0  stopped\nrworker-1  stopped\n", self.ok("down", self.config))
        self.assert_down(*pids)
        self.assertIn("is not up", self.ok("down", self.config))
        self.assertEqual(self.run_script("status", self.config).returncode, 3)
        self.assertEqual(self.run_script("logs", self.config).returncode, 2)
        again = self.up()
        self.assertNotIn("created the secret", again)
        self.workers()

    def test_ctrl_c_and_sigterm_take_all_down(self):
        self.write_config()
        for number in (signal.SIGINT, signal.SIGTERM):
            foreground = self.up_in_foreground()
            pids = self.pids_in(foreground.text)
            self.assertEqual(len(pids), 3)
            self.assertTrue(all(map(is_running, pids)))
            foreground.send(number)
            self.assertEqual(foreground.ended(), 0, foreground.text)
            self.assert_down(*pids)

    def test_interrupted_start_leaves_nothing(self):
        self.write_config()
        argv = self.script("up", self.config)
        process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        text = ""
        while "rworker-0  ready" not in text:
            line = process.stdout.readline()
            self.assertTrue(line, f"it ended before that: {text}")
            text += line
        pids = self.pids_in(text)
        process.send_signal(signal.SIGINT)
        text += process.communicate(timeout=cluster_case.PATIENCE_S)[0]
        self.assertEqual(process.returncode, 3, text)
        self.assertIn("interrupted before everything was ready", text)
        self.assert_down(*pids)

    def test_second_up_is_refused_and_harms_nothing(self):
        self.write_config()
        pids = self.pids_in(self.up())
        self.assert_fails(2, "is already up")
        self.assertTrue(all(map(is_running, pids)))
        pid = self.pid("rworker-0")
        os.kill(pid, signal.SIGKILL)
        eventually(lambda: not is_running(pid), "the R-worker's end")
        self.assert_fails(2, "up in part", "rworker-0 not")
        self.assert_fails(3, "rworker-0  DEAD", "was killed by SIGKILL", command="status", arguments=())

    def test_two_clusters_side_by_side(self):
        self.write_config()
        self.up()
        first = self.workers()
        other = ClusterCase()
        other.setUp()
        self.addCleanup(other.doCleanups)
        other.write_config()
        other.up()
        second = other.workers()
        addresses = {worker["address"] for worker in [*first.values(), *second.values()]}
        self.assertEqual(len(addresses), 6)
        self.ok("down", self.config)
        self.assertTrue(is_running(other.pid("sworker")))

    def test_down_ends_a_foreground_up(self):
        self.write_config()
        foreground = self.up_in_foreground()
        self.ok("down", self.config)
        self.assertEqual(foreground.ended(), 0, foreground.text)
        self.assertIn("taken down by another", foreground.text)
        self.assert_down(*self.pids_in(foreground.text))

    def test_frozen_worker_is_killed_and_said_so(self):
        self.write_config()
        self.up()
        pids = [self.pid(name) for name in ("rworker-0", "rworker-1", "sworker")]
        self.kill("rworker-0", signal.SIGSTOP)
        text = self.ok("down", self.config, "--grace", "2")
        self.assertIn("rworker-0  stopped  did not end within 2 s of SIGTERM, so it was killed", text)
        self.assert_down(*pids)


class Cpus(ClusterCase):
    def test_sets_are_disjoint(self):
        if len(os.sched_getaffinity(0)) < 2:
            self.skipTest("needs two CPUs")
        self.write_config(rworkers__count=1)
        self.up()
        rworker = os.sched_getaffinity(self.pid("rworker-0"))
        sworker = os.sched_getaffinity(self.pid("sworker"))
        self.assertEqual(len(rworker), 1)
        self.assertFalse(rworker & sworker)

    def test_more_threads_than_cpus_pin_nothing(self):
        count = len(os.sched_getaffinity(0))
        self.write_config(rworkers__count=1, rworkers__threads=count)
        self.assertIn(f"this host: {count + 1} threads for {count} CPUs, so none is pinned", self.up())
        for name in ("rworker-0", "sworker"):
            pid = self.pid(name)
            for thread in os.listdir(f"/proc/{pid}/task"):
                self.assertEqual(os.sched_getaffinity(int(thread)), os.sched_getaffinity(0), name)


class Failures(ClusterCase):
    def test_taken_port_of_an_rworker(self):
        with listener() as taken, listener() as free:
            ports = [free.getsockname()[1], taken.getsockname()[1]]
            free.close()
            hosts = [{"address": f"127.0.0.1:{port}"} for port in ports]
            self.write_config(rworkers__count=None, rworkers__hosts=hosts)
            text = self.assert_fails(3, "the end of rworker-1's log", f"127.0.0.1:{ports[1]}",
                                     "rworker-1 could not start: it ended with status 3")
            self.assert_down(*self.pids_in(text))

    def test_taken_port_of_the_sworker(self):
        with listener() as taken:
            self.write_config(sworker__listen=f"tcp://127.0.0.1:{taken.getsockname()[1]}")
            text = self.assert_fails(3, "the end of sworker's log", "sworker could not start",
                                     "rworker-0  stopped", "rworker-1  stopped")
            self.assertEqual(len(self.pids_in(text)), 2)
            self.assert_down(*self.pids_in(text))

    def test_damaged_model(self):
        model = self.folder / "model"
        shutil.copytree(MODEL, model)
        os.truncate(model / "model.safetensors", 1000)
        self.write_config(model__path="model")
        text = self.assert_fails(2, "the end of sworker's log", "model.safetensors")
        self.assert_down(*self.pids_in(text))

    def test_kernel_of_the_rworkers(self):
        self.write_config(rworkers__count=1, rworkers__kernel="reference")
        self.up()
        self.assertIn("kernel=reference", self.ok("logs", self.config, "rworker-0"))
        self.ok("down", self.config)
        self.write_config(rworkers__count=1, rworkers__kernel="avx3")
        text = self.assert_fails(2, "the end of rworker-0's log", "no attention kernel is called 'avx3'")
        self.assert_down(*self.pids_in(text))

    def test_config_error_starts_nothing(self):
        self.write_config(rworkers__treads=1)
        text = self.assert_fails(2, "rworkers.treads: unknown key", "rworkers.threads")
        self.assertEqual(self.pids_in(text), [])
        self.assertFalse((self.folder / "cluster.secret").exists())
        self.config.unlink()
        self.assert_fails(2, "no such file")
        self.assert_fails(2, "no fastdecode-sworker in", arguments=("--build", "/nowhere"))

    def test_secret_that_others_may_read(self):
        self.write_config()
        (self.folder / "cluster.secret").write_text("f" * 64)
        (self.folder / "cluster.secret").chmod(0o644)
        text = self.assert_fails(2, "has mode 0644", "chmod 600")
        self.assert_down(*self.pids_in(text))

    def test_rworker_dies_and_comes_back(self):
        self.write_config()
        foreground = self.up_in_foreground()
        before = self.workers()
        self.kill("rworker-1")
        foreground.wait_for("Bring it back with")
        self.assertIn(f"rworker-1 ({before['rworker-1']['address']}) was killed by SIGKILL; the others go on",
                      foreground.text)
        self.assertIn("the end of rworker-1's log", foreground.text)
        self.assertTrue(is_running(before["sworker"]["detail"]))

        self.assertRegex(self.ok("restart", self.config, "rworker-1"), r"rworker-1 +ready")
        foreground.wait_for("rworker-1 is back")
        after = self.workers()
        self.assertEqual(after["rworker-1"]["address"], before["rworker-1"]["address"])
        self.assertNotEqual(after["rworker-1"]["detail"], before["rworker-1"]["detail"])
        self.assertEqual(after["sworker"], before["sworker"])
        foreground.send(signal.SIGINT)
        self.assertEqual(foreground.ended(), 0, foreground.text)
        self.assert_down(*[int(worker["detail"]) for worker in after.values()])

    def test_restart_of_an_unknown_worker(self):
        self.write_config(rworkers__count=1)
        self.up()
        done = self.run_script("restart", self.config, "rworker-7")
        self.assertEqual(done.returncode, 2)
        self.assertIn("no worker is called rworker-7; there are rworker-0, sworker", done.stderr)

    def test_sworker_dies(self):
        self.write_config()
        foreground = self.up_in_foreground()
        self.kill("sworker")
        self.assertEqual(foreground.ended(), 3, foreground.text)
        self.assertIn("sworker was killed by SIGKILL; nothing can go on without it", foreground.text)
        self.assert_down(*self.pids_in(foreground.text))


class StaleState(ClusterCase):
    def test_dead_processes_are_noticed_and_cleaned_up(self):
        self.write_config()
        self.up()
        for name in ("sworker", "rworker-0", "rworker-1"):
            self.kill(name)
        self.assert_fails(3, "was killed by SIGKILL", command="status", arguments=())
        self.assertIn("an earlier run left its traces", self.up())
        self.workers()

    def test_a_pid_that_was_dealt_again_is_left_alone(self):
        self.write_config(rworkers__count=1)
        self.up()
        self.kill("rworker-0")
        bystander = subprocess.Popen(["sleep", "600"])
        try:
            pid_file = self.run_folder() / "rworker-0.pid"
            _, start, boot = pid_file.read_text().split()
            pid_file.write_text(f"{bystander.pid} {start} {boot}\n")
            self.ok("down", self.config)
            self.assertTrue(is_running(bystander.pid))
        finally:
            bystander.kill()
            bystander.wait()

    def test_state_of_another_boot_is_dead(self):
        self.write_config(rworkers__count=1)
        self.up()
        pid = self.pid("sworker")
        pid_file = self.run_folder() / "sworker.pid"
        kept = pid_file.read_text()
        pid_file.write_text(kept.rpartition(" ")[0] + " 00000000-0000-0000-0000-000000000000\n")
        self.assertEqual(self.workers()["sworker"]["state"], "dead")
        pid_file.write_text(kept)
        self.assertEqual(self.pid("sworker"), pid)

    def test_a_killed_launcher_leaves_a_cluster_that_down_ends(self):
        self.write_config()
        foreground = self.up_in_foreground()
        foreground.send(signal.SIGKILL)
        foreground.ended()
        pids = self.pids_in(foreground.text)
        self.assertTrue(all(map(is_running, pids)))
        self.assert_fails(2, "is already up")
        self.ok("down", self.config)
        self.assert_down(*pids)

    def run_folder(self):
        for path in Path(f"/tmp/fastdecode-{os.getuid()}").glob("*/state.json"):
            if json.loads(path.read_text())["config"] == os.path.realpath(self.config):
                return path.parent
        raise AssertionError("no run folder")

    def test_run_folder_is_ours_alone(self):
        self.write_config(rworkers__count=1)
        self.up()
        folder = self.run_folder()
        for path in (folder, folder.parent):
            self.assertEqual(stat.S_IMODE(path.stat().st_mode), 0o700)
        self.ok("down", self.config)
        self.assertEqual(list(folder.parent.glob(folder.name + "*")), [])

    def test_down_removes_what_a_failed_up_left(self):
        self.write_config()
        (self.folder / "cluster.secret").write_text("too short")
        text = self.assert_fails(2, "logs stay in ")
        folder = Path(re.search(r"logs stay in (.*)", text).group(1))
        self.assertTrue((folder / "rworker-0.log").exists())
        self.ok("down", self.config)
        self.assertEqual(list(folder.parent.glob(folder.name + "*")), [])


if __name__ == "__main__":
    cluster_case.main()
