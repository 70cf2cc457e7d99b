"""A whole decode over verbs: S-worker (libtorch on the CPU) and two R-workers, the real programs, on a host with
an RDMA device. The ids are Hugging Face's, and the same as over tcp. Usage: decode_test.py BUILD_FOLDER"""

import json
import os

from rdma_case import ROOT, RdmaCase, main

MODEL = "tinystories-656k-bf16"
ORACLE = "models/tinystories-656k/expected_many.json"  # answers for the bf16 copy, too
CASES, TOKENS = 8, 12
PORTS = (7200, 7201)


def config(kind):
    return {
        "model": {"path": "/w/model"},
        "sworker": {"listen": "tcp://127.0.0.1:7100", "threads": 1, "pin": False},
        "rworkers": {"hosts": [{"address": f"127.0.0.1:{port}", "threads": 1, "kv_memory": "8MiB"} for port in PORTS]},
        "pipeline": {"max_batch": CASES},
        "transport": {"kind": kind, "secret_file": "/tmp/secret", "heartbeat_ms": 1000, "peer_timeout_ms": 20000},
    }


class Decode(RdmaCase):
    def decode(self, machine, kind):
        """The ids of all cases, as lines, and the S-worker's log."""
        machine.run(f"cat >/tmp/{kind}.json <<'END'\n{json.dumps(config(kind))}\nEND")
        rworkers = [
            machine.spawn(f"exec fastdecode-rworker --listen 127.0.0.1:{port} --kv_memory 8MiB --threads 1 --pin=false "
                          f"--transport {kind} --secret_file /tmp/secret")
            for port in PORTS
        ]  # fmt: skip
        for rworker in rworkers:
            rworker.wait_for("^ready")
        sworker = machine.spawn(f"exec fastdecode-sworker --config /tmp/{kind}.json")
        sworker.wait_for("^ready", 180)
        status, output = machine.run(f"decode_ids 127.0.0.1:7100 /tmp/secret oracle.json {CASES} {TOKENS}", 180)
        self.assertEqual(status, 0, output + sworker.output)
        machine.run("killall fastdecode-sworker fastdecode-rworker")
        for job in (sworker, *rworkers):
            self.assertEqual(job.wait().status, 0, job.output)
        return output, sworker.output

    def test_ids_are_those_of_tcp_and_of_hugging_face(self):
        files = self.programs("fastdecode-rworker", "fastdecode-sworker", "decode_ids")
        files["oracle.json"] = os.path.join(ROOT, ORACLE)
        trees = {"model": os.path.join(ROOT, "models", MODEL)}
        with self.rig.machine("vm", files=files, trees=trees) as machine:
            machine.run("head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \\n' >/tmp/secret; chmod 600 /tmp/secret")
            verbs, log = self.decode(machine, "verbs")
            self.assertEqual(log.count("transport verbs (named by transport.kind)"), len(PORTS), log)
            tcp, log = self.decode(machine, "tcp")
            self.assertEqual(log.count("transport tcp (named by transport.kind)"), len(PORTS), log)
            self.assertEqual(verbs, tcp)
            self.assertEqual(verbs.count("ids:"), CASES)


if __name__ == "__main__":
    main()
