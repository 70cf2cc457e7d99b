"""fastdecode-sworker --trace-out: the file that Perfetto opens has both mini-batches, and looks like the simulator's."""

import json
import signal
import subprocess

from e2e_case import PATIENCE_S, Client, E2eCase, Run, cluster_case, keys, main

SIMULATED = {
    "schema": 2,
    "models": [
        {
            "name": "toy",
            "key": {
                "hidden_size": 64, "intermediate_size": 128, "vocab_size": 100, "num_heads": 4, "num_kv_heads": 4,
                "head_dim": 16, "dtype": "f16", "device": "cpu", "kv_keys": "f16", "kv_values": "f16",
                "transport": "any",
            },
            "layer": [{"rows": 1, "seconds": 1e-3}],
            "copy_in": [{"rows": 1, "seconds": 1e-4}],
            "copy_out": [{"rows": 1, "seconds": 1e-4}],
            "prefill": [{"tokens": 1, "seconds": 1e-3}],
            "rworkers": [{"seconds_per_token": 1e-6}],
        }
    ],
}  # fmt: skip


def kinds(events):
    """What events there are: name, phase, and the names of all fields. Counters go by their mini-batch too."""
    return {(e["name"], e["ph"], *sorted(e), *sorted(e.get("args", {}))) for e in events}


def lanes(events):
    """{(process, lane): name}"""
    return {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}


class TimelineFile(E2eCase):
    def real(self):
        """The events of 6 requests of 20 tokens, after SIGTERM."""
        self.write_config(rworkers__count=1)
        self.ok("up", "--detach", "--rworkers-only", self.config)
        state = json.loads(self.run_script("status", "--json", self.config).stdout)
        path = self.folder / "real.json"
        argv = [f"{cluster_case.programs}/fastdecode-sworker", "--config", state["effective_config"], "--trace-out", path]
        with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as sworker:
            try:
                ready = sworker.stdout.readline()
                self.assertTrue(ready.startswith("ready fastdecode-sworker "), ready)
                client = Client(ready.split()[2], keys.load(self.folder / "cluster.secret"), "test")
                run = Run(client)
                for _ in range(6):
                    run.submit([5] * 8, max_tokens=20, ignore_eos=True)
                run.wait()
                client.close()
                sworker.send_signal(signal.SIGTERM)
                self.assertEqual(sworker.wait(timeout=PATIENCE_S), 0)
            finally:
                sworker.kill()
        return json.loads(path.read_text())

    def simulated(self):
        profile, path = self.folder / "profile.json", self.folder / "simulated.json"
        profile.write_text(json.dumps(SIMULATED))
        subprocess.run([f"{cluster_case.programs}/fastdecode-sim", "--profile", profile, "--layers", "2", "--batch", "4",
                        "--prompt_tokens", "8", "--output_tokens", "20", "--trace_out", path],
                       check=True, stdout=subprocess.DEVNULL)  # fmt: skip
        return json.loads(path.read_text())

    def test_both_write_the_same_timeline(self):
        # The S-worker lets go of its R-workers as it ends, which its engine may still be told.
        real = [event for event in self.real() if event["name"] != "lost"]
        simulated = self.simulated()
        self.assertEqual(kinds(real), kinds(simulated))
        self.assertEqual(lanes(real), lanes(simulated))
        names = lanes(real)
        for mini_batch in (0, 1):
            passes = [e for e in real if e["name"] == "pass" and names[e["pid"], e["tid"]] == f"mini-batch {mini_batch}"]
            self.assertGreaterEqual(len(passes), 19)
            for earlier, later in zip(passes, passes[1:]):
                self.assertLessEqual(earlier["ts"] + earlier["dur"], later["ts"] + 0.01)
            parts = [e for e in real if e["name"] == "S-part" and e["args"]["mini_batch"] == mini_batch]
            layers = json.loads((cluster_case.MODEL / "config.json").read_text())["num_hidden_layers"]
            self.assertGreaterEqual(len(parts), len(passes) * layers)
        decoded = sum(e["args"]["rows"] for e in real if e["name"] == "pass")
        self.assertEqual(decoded, 6 * 20)


if __name__ == "__main__":
    main()
