"""A profile measured on the real programs, and all who read it: recommend, the S-worker, the benchmark."""

import json
import subprocess

from e2e_case import PATIENCE_S, E2eCase, Run, cluster_case, main


class Plan(E2eCase):
    measured = None  # the profile of write_config's deployment, as text: measured once for all tests

    def program(self, name, *arguments):
        argv = [f"{cluster_case.programs}/{name}", *map(str, arguments)]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=PATIENCE_S)
        return done.returncode, done.stdout, done.stderr

    def profile(self, change=None):
        """A file with the profile, changed by `change`."""
        if Plan.measured is None:
            self.write_config(rworkers__count=1)
            path = self.folder / "measured.json"
            status, _, errors = self.program("fastdecode-plan", "measure", "--config", self.config, "--out", path,
                                             "--seconds", 1)  # fmt: skip
            self.assertEqual(status, 0, errors)
            Plan.measured = path.read_text()
        document = json.loads(Plan.measured)
        if change:
            change(document["models"][0])
        path = self.folder / "profile.json"
        path.write_text(json.dumps(document))
        return path

    def test_measure_has_every_part(self):
        document = json.loads(self.profile().read_text())
        (model,) = document["models"]
        self.assertEqual(model["key"]["dtype"], "f32")
        self.assertIn(model["key"]["transport"], ("shm", "tcp"))
        self.assertGreater(document["machine"]["read_bytes_per_s"], 1e8)
        (rworker,) = model["rworkers"]
        for curve in ("layer", "copy_in", "copy_out", "outer", "serving", "prefill", "prefill_outer"):
            self.assertTrue(model[curve], curve)
        self.assertEqual([point["rows"] for point in model["layer"]], [1, 2])  # max_batch 4 in two mini-batches
        self.assertEqual([curve["rows"] for curve in rworker["attended"]], [1, 2])
        self.assertTrue(rworker["wire"])
        # Another deployment's entry is added, the same one's replaced.
        path = self.profile(lambda model: model["key"].update(hidden_size=4096))
        self.write_config(rworkers__count=1)
        measure = ("fastdecode-plan", "measure", "--config", self.config, "--seconds", 1, "--out")
        self.assertEqual(self.program(*measure, path)[0], 0)
        self.assertEqual([m["key"]["hidden_size"] for m in json.loads(path.read_text())["models"]], [4096, 128])
        path.write_text(path.read_text()[:1000])
        status, _, errors = self.program(*measure, path)
        self.assertEqual(status, 2, errors)
        self.assertIn("remove it or name another", errors)
        status, _, errors = self.program(*measure, self.folder / "nowhere" / "profile.json")
        self.assertEqual(status, 2, errors)
        self.assertIn("can't be written: No such file or directory", errors)
        self.assertNotIn("memory: one thread reads", errors)  # before it measures

    def test_recommend_and_its_config(self):
        profile = self.profile()
        config = self.folder / "recommended.json"
        flags = ("recommend", "--model", cluster_case.MODEL, "--sockets", 1, "--device", "cpu", "--output_tokens", 64,
                 "--socket_memory", "64MiB", "--profile", profile)  # fmt: skip
        status, output, errors = self.program("fastdecode-plan", *flags, "--json", "--write_config", config)
        self.assertEqual(status, 0, errors)
        recommendation = json.loads(output)
        self.assertGreater(recommendation["tokens_per_s"], 0)
        status, output, errors = self.program("fastdecode-sworker", "--config", config, "--check-config")
        self.assertEqual(status, 0, errors)
        effective = json.loads(output)
        key = json.loads(profile.read_text())["models"][0]["key"]
        self.assertEqual(effective["pipeline"]["max_batch"], recommendation["batch"])
        self.assertEqual(effective["load_control"]["workload_limit"], recommendation["workload_limit"])
        self.assertEqual(effective["transport"]["kind"], key["transport"])
        self.assertEqual(effective["plan"]["profile"], str(profile))
        status, _, errors = self.program("fastdecode-plan", *flags, "--threads", 2)
        self.assertEqual(status, 2, errors)
        self.assertIn("threads 1 instead of 2", errors)

    def test_the_sworker_compares_itself_with_it(self):
        profile = self.profile()
        self.write_config(rworkers__count=1, plan__profile=str(profile))
        self.up()
        client = self.connect()
        run = Run(client)
        for _ in range(4):
            run.submit([5] * 8, max_tokens=40, ignore_eos=True)
        run.wait()
        stats = client.stats()
        plan = stats["plan"]
        self.assertGreater(plan["passes"], 0)
        for part in ("step_ms", "s_part_ms", "r_part_ms"):
            self.assertGreater(plan[part]["predicted"], 0, part)
            self.assertAlmostEqual(plan[part]["ratio"], plan[part]["predicted"] / plan[part]["measured"], places=6)
        limit = stats["config"]["load_control"]["workload_limit"]
        self.assertEqual(stats["scheduler"]["workload_limit"], limit)
        self.assertIn(f"load_control.workload_limit: {limit} by {profile}", self.ok("logs", self.config, "sworker"))
        self.assertEqual(stats["rworkers"][0]["transport"], json.loads(Plan.measured)["models"][0]["key"]["transport"])

    def test_the_sworker_refuses_what_is_not_its_own(self):
        def refused(text, change=None, cut=None, **config):
            profile = self.profile(change)
            if cut:
                profile.write_text(profile.read_text()[:cut])
            self.write_config(rworkers__count=None, rworkers__hosts=[{"address": "127.0.0.1:9"}],
                              plan__profile=str(profile), **config)  # fmt: skip
            status, _, errors = self.program("fastdecode-sworker", "--config", self.config)
            self.assertEqual(status, 2, errors)
            self.assertIn("plan.profile: ", errors)
            self.assertIn(text, errors)

        self.profile()
        refused("profile.json: ", cut=500)
        refused("models[0].layer[1].seconds: found -1", lambda model: model["layer"][1].update(seconds=-1))
        refused("models[0].key.transport: is missing", lambda model: model["key"].pop("transport"))
        refused("hidden_size 4096 instead of 128", lambda model: model["key"].update(hidden_size=4096))
        refused("transport shm instead of tcp", lambda model: model["key"].update(transport="shm"), transport__kind="tcp")
        self.write_config(rworkers__count=None, rworkers__hosts=[{"address": "127.0.0.1:9"}], plan__profile="none.json")
        status, _, errors = self.program("fastdecode-sworker", "--config", self.config)
        self.assertEqual(status, 2, errors)
        self.assertIn("none.json", errors)

    def test_a_transport_that_is_only_known_at_the_handshake(self):
        profile = self.profile(lambda model: model["key"].update(transport="verbs"))
        self.write_config(rworkers__count=1, plan__profile=str(profile))
        output = self.assert_fails(2, "was measured over verbs, and rows go over ")
        self.assertIn("transport.kind", output)

    def test_the_benchmark_compares_with_it(self):
        self.profile()
        self.write_config(rworkers__count=1, load_control__enabled=False)
        self.up()
        report = self.folder / "report.json"
        address = self.workers()["sworker"]["address"]
        flags = ("--connect", address, "--secret_file", self.folder / "cluster.secret", "--batch", 4, "--prompt_tokens", 8,
                 "--output_tokens", 64, "--decode_only", "--json", report, "--compare_plan")  # fmt: skip
        for change, text in (
            (lambda model: model["key"].update(hidden_size=4096), "hidden_size 4096 instead of 128"),
            (lambda model: model["key"].update(transport="verbs"), "transport verbs instead of "),
            (lambda model: model["layer"][0].pop("seconds"), "models[0].layer[0].seconds: is missing"),
        ):
            status, output, errors = self.program("fastdecode-bench", *flags, self.profile(change))
            self.assertEqual(status, 2, errors)
            self.assertIn(text, errors)
            self.assertFalse(report.exists(), "it measured first")
        status, output, errors = self.program("fastdecode-bench", *flags, self.profile())
        self.assertEqual(status, 0, errors)
        self.assertIn("plan against actual", output)
        plan = json.loads(report.read_text())["plan"]
        self.assertGreater(plan["tokens_per_s"]["ratio"], 0)
        self.assertAlmostEqual(plan["workload"]["ratio"], 1, delta=0.2)


if __name__ == "__main__":
    main()
