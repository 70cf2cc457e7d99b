"""What keeps a transport from being used is said in one sentence, to an ordinary user, by the real R-worker and by an
S-worker's links (link_probe): `auto` takes the next transport and says why, a named one is refused.
Usage: errors_test.py BUILD_FOLDER"""

import re

from rdma_case import RdmaCase, main

ADDRESS = "127.0.0.1:7200"
PATIENCE_S = 60
NO_DEVICE = "rdma link delete rxe0"
DEVICE = "rdma link add rxe0 type rxe netdev eth0"
REFUSES = f"rworker {re.escape(ADDRESS)} refuses: "
MEMLOCK = (
    r"cannot register \d+ bytes of message slots with the RDMA device: RLIMIT_MEMLOCK allows 65536 bytes of locked memory, or there is "
    r"too little memory\. Raise it: `ulimit -l unlimited`, .*"
)
FILE_SIZE = (
    r"shared memory of \d+ bytes is above this process's file-size limit of 8192 bytes \(RLIMIT_FSIZE\); raise it: ulimit -f unlimited"
)
NO_GID = r"port 1 of the RDMA device rxe0 has no GID of index 200; it has 0 \(RoCE v2, [0-9a-f.:]+\).*"
NO_WAY = r".*no way from GID fe80:\S+ to the other end's GID 10.9.0.1 \(.*\): wrong GID or no route\. .*"


class Errors(RdmaCase):
    def setUp(self):
        self.host = self.boot("host", ["fastdecode-rworker", "link_probe"], cpus=1)
        self.host.run("printf %064d 7 >/tmp/secret; chmod 600 /tmp/secret; chown nobody /tmp/secret")

    def user(self, command, limit=""):
        """Starts it as an ordinary user."""
        return self.host.spawn(f"exec su -s /bin/sh nobody -c '{limit or ':'} && exec {command}'")

    def rworker(self, *flags, limit=""):
        flags = " ".join(("--kv_memory=8MiB", "--threads=1", "--pin=false", "--secret_file=/tmp/secret", f"--listen={ADDRESS}", *flags))
        return self.user("fastdecode-rworker " + flags, limit)

    def probe(self, *flags, limit=""):
        return self.user(f"link_probe {' '.join(flags)} /tmp/secret {ADDRESS}", limit)

    def end(self, *jobs):
        self.host.run("killall fastdecode-rworker link_probe")
        for job in jobs:
            job.wait()

    def expect_refusal(self, job, status, program, sentence):
        """It ends with one line for the user."""
        self.assertEqual(job.wait(PATIENCE_S).status, status, job.output)
        said = [line for line in job.lines if line.startswith(program + ": ")]
        self.assertEqual(len(said), 1, job.output)
        self.assertRegex(said[0], f"^{program}: {sentence}$")
        print("  " + said[0], flush=True)

    def expect_line(self, job, pattern):
        match = job.wait_for(pattern, PATIENCE_S)
        print("  " + match.string[match.start() : match.end()], flush=True)

    def check_sessions(self, rworker, transport, *probe_flags, why, limit="", refused=None):
        """An R-worker that is up: the S-worker joins by `transport` and both say why; named, it is not joined: `refused`."""
        rworker.wait_for("^ready", PATIENCE_S)
        if refused:
            probe = self.probe("--transport=" + refused[0], *probe_flags, limit=limit)
            self.expect_line(probe, rf"^missing 0 {refused[1]}$")
            self.host.run("killall link_probe")
            probe.wait()
        probe = self.probe("--transport=auto", *probe_flags, limit=limit)
        self.expect_line(probe, rf"^joined 0 \d+ {transport} \({why}\)$")
        rworker.wait_for(rf"transport {transport} \({why}\)$", PATIENCE_S)
        self.end(rworker, probe)

    def test_a_host_without_a_usable_device(self):
        link_is = "for i in $(seq 100); do rdma link show rxe0/1 | grep -q 'state {}' && break; sleep 0.1; done"
        for name, fault, mend, sentence in (
            ("no device", NO_DEVICE, DEVICE, r"no RDMA device on this host \(ibv_devices shows none; soft-RoCE: .*\)"),
            ("no permission", "chmod 600 /dev/infiniband/uverbs0", "chmod 666 /dev/infiniband/uverbs0",
             r"cannot open the RDMA device rxe0: this user may not read and write /dev/infiniband/uverbs0 .*"),
            ("no provider", "mv /usr/lib/x86_64-linux-gnu/libibverbs /tmp/", "mv /tmp/libibverbs /usr/lib/x86_64-linux-gnu/",
             r"the kernel has the RDMA device rxe0, but libibverbs has no provider for it \(.*ibverbs-providers.*"),
            ("port down", "ip link set eth0 down; " + link_is.format("DOWN"), "ip link set eth0 up; " + link_is.format("ACTIVE"),
             r"port 1 of the RDMA device rxe0 is down, not active: check the cable, `ip link`, .*"),
        ):  # fmt: skip
            with self.subTest(name):
                print(name, flush=True)
                self.host.run(fault)
                self.expect_refusal(self.rworker("--transport=verbs"), 3, "fastdecode-rworker", sentence)
                self.expect_refusal(self.probe("--transport=verbs"), 1, "link_probe", sentence)
                self.check_sessions(self.rworker(), "shm", why=f"auto; not verbs: {sentence}")
                self.assertEqual(self.host.run(mend).status, 0)
        # All of it is mended: otherwise the cases would prove nothing.
        rworker = self.rworker()
        self.check_sessions(rworker, "verbs", why="auto")

    def test_a_gid_that_is_not_there(self):
        self.expect_refusal(self.rworker("--transport=verbs", "--verbs_gid_index=200"), 3, "fastdecode-rworker", NO_GID)
        self.expect_refusal(self.probe("--transport=verbs", "--gid_index=200"), 1, "link_probe", NO_GID)
        self.check_sessions(self.rworker(), "shm", "--gid_index=200", why=f"auto; not verbs: {NO_GID}")
        self.check_sessions(self.rworker("--verbs_gid_index=200"), "shm", why=f"auto; not verbs: {REFUSES}{NO_GID}",
                            refused=("verbs", REFUSES + NO_GID))  # fmt: skip

    def test_a_gid_of_another_network(self):
        no_way = f"{REFUSES}{NO_WAY}"
        self.check_sessions(self.rworker("--verbs_gid_index=0"), "shm", why=f"auto; not verbs: {no_way}",
                            refused=("verbs", f"transport verbs: {no_way}"))  # fmt: skip

    def test_too_little_locked_memory(self):
        limit = "ulimit -l 64"
        self.check_sessions(self.rworker(limit=limit), "shm", why=f"auto; not verbs: {REFUSES}{MEMLOCK}",
                            refused=("verbs", f"transport verbs: {REFUSES}{MEMLOCK}"))  # fmt: skip
        self.check_sessions(self.rworker(), "shm", why=f"auto; not verbs: {MEMLOCK}", limit=limit,
                            refused=("verbs", f"transport verbs: {MEMLOCK}"))  # fmt: skip

    def test_memory_that_takes_long_to_make_ready_holds_up_no_heartbeats(self):
        for transport in ("verbs", "tcp"):
            rworker = self.rworker()
            rworker.wait_for("^ready", PATIENCE_S)
            probe = self.probe("--transport=" + transport, "--memory_s=7")  # a silence of 3 s would end the session
            self.expect_line(probe, rf"^joined 0 \d+ {transport} \(named by transport.kind\)$")
            self.assertNotRegex(rworker.output, "session .* ended")
            self.end(rworker, probe)

    def test_shared_memory(self):
        self.host.run(NO_DEVICE)
        self.check_sessions(self.rworker(), "tcp", why=rf"auto; not verbs: .*; not shm: {FILE_SIZE}", limit="ulimit -f 16",
                            refused=("shm", f"transport shm: {FILE_SIZE}"))  # fmt: skip
        for pages, said in ((0, True), (64, False)):
            self.host.run(f"sysctl -q vm.nr_hugepages={pages}")
            rworker = self.rworker()
            rworker.wait_for("^ready", PATIENCE_S)
            probe = self.probe("--transport=shm")
            self.expect_line(probe, r"^joined 0 \d+ shm \(named by transport.kind\)$")
            line = re.search(r"of \d+ MiB lies? on small pages: no huge page is free \(sysctl vm.nr_hugepages\)$", probe.output, re.MULTILINE)
            self.assertEqual(line is not None, said, probe.output)
            print("  " + (line[0] if line else "on huge pages"), flush=True)
            self.end(rworker, probe)


if __name__ == "__main__":
    main()
