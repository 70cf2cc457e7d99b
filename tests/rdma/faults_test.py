"""What dies, freezes or is cut off between two hosts is noticed by name, and only what it concerns ends.

Host r has two R-workers (the real program), host s an S-worker's links without a model (link_probe), one
cable between them. Usage: faults_test.py BUILD_FOLDER
"""

import re
import time

from rdma_case import RdmaCase, main

PORTS = (7200, 7201)
R, S = "10.9.0.1", "10.9.0.2"
NOTICE_S = 10  # twice the 5 s within which whoever must know has to know
PATIENCE_S = 60
SECRET = "printf %064d 7 >/tmp/secret; chmod 600 /tmp/secret"


class Faults(RdmaCase):
    def setUp(self):
        self.cable = self.lay_cable("r", "s")
        self.rworkers = {}
        self.r = self.boot_host("r", R, "fastdecode-rworker")
        self.s = self.boot_host("s", S, "link_probe")

    def boot_host(self, name, address, program):
        machine = self.boot(name, [program], cpus=1, address=address, cable=self.cable)
        machine.run(SECRET)
        return machine

    def start_rworker(self, index):
        job = self.rworkers[index] = self.r.spawn(
            f"echo $$ >/tmp/rworker{index}; exec fastdecode-rworker --listen {R}:{PORTS[index]} --kv_memory 8MiB --threads 1 --pin=false "
            "--transport verbs --secret_file /tmp/secret"
        )
        job.wait_for("^ready", PATIENCE_S)
        return job

    def start_probe(self):
        addresses = " ".join(f"{R}:{port}" for port in PORTS)
        self.probe = self.s.spawn(f"echo $$ >/tmp/probe; exec link_probe --transport=verbs /tmp/secret {addresses}")
        self.seen = 0

    def signal(self, machine, name, process):
        self.assertEqual(machine.run(f"kill -{name} $(cat /tmp/{process})"), (0, ""))

    def expect(self, pattern, timeout_s=PATIENCE_S):
        """The next line of the probe that matches; what stands before it is done with."""
        found = []

        def look():
            lines = self.probe.lines[self.seen :]
            found[:] = [(i, m) for i, m in ((i, re.search(pattern, line)) for i, line in enumerate(lines)) if m][:1]
            return bool(found) or self.probe.status is not None

        began = time.monotonic()
        self.s.wait_until(look, timeout_s, lambda: f"/{pattern}/", self.probe)
        self.assertTrue(found, f"/{pattern}/ never came:\n{self.probe.output}")
        at, match = found[0]
        self.seen += at + 1
        print(f"  {match.string}   ({time.monotonic() - began:.1f} s)", flush=True)
        return match

    def expect_log(self, job, pattern, since):
        began = time.monotonic()
        job.machine.wait_until(
            lambda: any(re.search(pattern, line) for line in job.lines[since:]), NOTICE_S, lambda: f"/{pattern}/", job
        )
        line = next(line for line in job.lines[since:] if re.search(pattern, line))
        print(f"  {line}   ({time.monotonic() - began:.1f} s)", flush=True)

    def rounds(self, index):
        lines = [line for line in self.probe.lines if line.startswith(f"traffic {index} ")]
        return int(lines[-1].split()[2]) if lines else 0

    def expect_traffic(self, index):
        before = self.rounds(index)
        self.s.wait_until(lambda: self.rounds(index) > before, PATIENCE_S, lambda: f"traffic {index}", self.probe)

    def both_joined(self):
        # They come in any order.
        first = int(self.expect(r"^joined (\d) \d+ verbs").group(1))
        self.expect(rf"^joined {1 - first} \d+ verbs")
        for index in (0, 1):
            self.expect_traffic(index)

    def resources(self):
        return self.r.run("rdma resource show").output

    def test_one_cable(self):
        unused = self.resources()
        for index in (0, 1):
            self.start_rworker(index)
        self.start_probe()
        self.both_joined()
        in_use = self.resources()
        self.assertNotEqual(in_use, unused)
        for step in (self.receiver_killed, self.receiver_frozen, self.host_frozen, self.cable_cut, self.sender_killed,
                     self.receiving_host_killed, self.sending_host_killed):  # fmt: skip
            print(step.__name__, flush=True)
            step()
            if step in (self.receiver_frozen, self.cable_cut):
                self.assertEqual(self.resources(), in_use, "what the sessions that ended had is still there")
        for index in (0, 1):
            self.signal(self.r, "TERM", f"rworker{index}")
            self.assertEqual(self.rworkers[index].wait().status, 0)
        self.assertEqual(self.resources(), unused)

    def receiver_killed(self):
        self.signal(self.r, "KILL", "rworker0")
        self.expect("^lost 0 .*", NOTICE_S)
        self.expect_traffic(1)
        self.rworkers[0].wait()
        self.start_rworker(0)
        self.expect(r"^joined 0 \d+ verbs")
        self.expect_traffic(0)

    def receiver_frozen(self):
        since = len(self.rworkers[0].lines)
        self.signal(self.r, "STOP", "rworker0")
        self.expect("^lost 0 .*(silent|retry exceeded)", NOTICE_S)
        self.expect_traffic(1)
        self.signal(self.r, "CONT", "rworker0")
        self.expect_log(self.rworkers[0], "session .* ended", since)
        self.expect(r"^joined 0 \d+ verbs")
        self.expect_traffic(0)

    def host_frozen(self):
        self.r.freeze()
        for _ in range(2):
            self.expect("^lost . .*(silent|retry exceeded)", NOTICE_S)
        self.r.thaw()
        self.both_joined()

    def cable_cut(self):
        since = [len(self.rworkers[index].lines) for index in (0, 1)]
        self.cable.cut()
        for _ in range(2):
            self.expect("^lost . .*(silent|retry exceeded)", NOTICE_S)
        for index in (0, 1):
            self.expect_log(self.rworkers[index], "session .* ended .*(silent|retry exceeded)", since[index])
        self.cable.mend()
        self.both_joined()

    def sender_killed(self):
        since = [len(self.rworkers[index].lines) for index in (0, 1)]
        self.signal(self.s, "KILL", "probe")
        for index in (0, 1):
            self.expect_log(self.rworkers[index], "session .* ended .*closed", since[index])
        self.start_probe()
        self.both_joined()

    def receiving_host_killed(self):
        self.r.kill()
        for _ in range(2):
            self.expect("^lost . .*(silent|retry exceeded)", NOTICE_S)
        self.r = self.boot_host("r", R, "fastdecode-rworker")
        for index in (0, 1):
            self.start_rworker(index)
        self.both_joined()

    def sending_host_killed(self):
        since = [len(self.rworkers[index].lines) for index in (0, 1)]
        self.s.kill()
        for index in (0, 1):
            self.expect_log(self.rworkers[index], "session .* ended .*(silent|retry exceeded)", since[index])


if __name__ == "__main__":
    main()
