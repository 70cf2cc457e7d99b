"""Requests, configs and model folders that are wrong: one clear error each, for that one alone."""

import json
import shutil
import subprocess

from e2e_case import REPOSITORY, E2eCase, Run, cluster_case, main, oracle

MODEL = REPOSITORY / "models" / "tinystories-656k"


class Requests(E2eCase):
    def test_bad_requests_beside_a_good_one(self):
        self.write_config(rworkers__count=1)
        self.up()
        client = self.connect()
        case = oracle("tinystories-656k")[5]
        run = Run(client)
        good = run.submit(case["prompt_ids"], max_tokens=48)
        bad = {
            "empty_prompt": run.submit([], max_tokens=4),
            "too_long": run.submit([5] * 600, max_tokens=4),
            "bad_token": run.submit([5, 2048], max_tokens=4),
            "bad_parameter": run.submit([5], max_tokens=0),
        }
        run.wait()
        self.assertEqual(run.ids(good), case["greedy_ids"])
        for code, request in bad.items():
            self.assertEqual(run.finished[request]["finish_reason"], "error")
            self.assertEqual(run.finished[request]["error"]["code"], code)

    def test_a_request_that_never_fits_is_refused_with_the_numbers(self):
        self.write_config(rworkers__count=1, rworkers__kv_memory="1MiB", model__max_context=512)
        done = self.run_script("up", "--detach", self.config)
        # Too little memory for one sequence of the whole context is refused at the handshake already.
        self.assertEqual(done.returncode, 3 if "memory" in done.stdout + done.stderr else 0, done.stdout + done.stderr)

    def test_sampling_is_the_seeds_alone(self):
        self.write_config(rworkers__count=2)
        self.up()
        run = Run(self.connect())
        prompt = oracle("tinystories-656k")[5]["prompt_ids"]
        options = {"max_tokens": 40, "temperature": 1.0, "top_p": 0.95, "top_k": 50, "ignore_eos": True}
        first = run.submit(prompt, seed=7, **options)
        other = run.submit(prompt, seed=8, **options)
        run.wait()
        for _ in range(6):  # Company in the batch, and another R-worker, perhaps.
            run.submit(prompt, seed=9, **options)
        again = run.submit(prompt, seed=7, logprobs=True, **options)
        run.wait()
        self.assertEqual(run.ids(again), run.ids(first))
        self.assertNotEqual(run.ids(other), run.ids(first))
        self.assertEqual(run.finished[again]["seed"], 7)
        self.assertTrue(all(p <= 0 for p in run.finished[again]["logprobs"]))

    def test_stop_ids_and_length(self):
        self.write_config(rworkers__count=1)
        self.up()
        run = Run(self.connect())
        case = oracle("tinystories-656k")[5]
        stop = case["greedy_ids"][4]
        end = case["greedy_ids"].index(stop) + 1
        stopped = run.submit(case["prompt_ids"], max_tokens=48, stop_ids=[stop])
        one = run.submit(case["prompt_ids"], max_tokens=1)
        whole = run.submit([5] * 511, max_tokens=100, ignore_eos=True)  # the context leaves one token
        run.wait()
        self.assertEqual(run.ids(stopped), case["greedy_ids"][:end])
        self.assertEqual(run.finished[stopped]["finish_reason"], "stop")
        self.assertEqual(run.ids(one), case["greedy_ids"][:1])
        self.assertEqual(len(run.ids(whole)), 1)
        self.assertEqual(run.finished[whole]["finish_reason"], "length")


class Programs(E2eCase):
    """The S-worker's own command line."""

    def sworker(self, *flags):
        program = f"{cluster_case.programs}/fastdecode-sworker"
        done = subprocess.run([program, *map(str, flags)], capture_output=True, text=True, timeout=60)
        return done.returncode, done.stdout, done.stderr

    def model_copy(self):
        folder = self.folder / "model"
        shutil.copytree(MODEL, folder)
        return folder

    def assert_refused(self, *texts, **changes):
        self.write_config(**({"rworkers__count": None, "rworkers__hosts": [{"address": "127.0.0.1:9"}]} | changes))
        (self.folder / "cluster.secret").write_text("5" * 64 + "\n")
        (self.folder / "cluster.secret").chmod(0o600)
        status, _, errors = self.sworker("--config", self.config)
        self.assertEqual(status, 2, errors)
        for text in texts:
            self.assertIn(text, errors)
        said = [line for line in errors.splitlines() if line.startswith("fastdecode-sworker: ")]
        self.assertEqual(len(said), 1, errors)

    def test_usage(self):
        self.assertEqual(self.sworker()[0], 2)
        self.assertEqual(self.sworker("--no_such_flag")[0], 2)
        self.assertEqual(self.sworker("--config", self.folder / "none.json")[0], 2)
        status, output, _ = self.sworker("--help")
        self.assertEqual(status, 0)
        self.assertIn("--config", output)
        self.assertEqual(self.sworker("--version")[0], 0)

    def test_check_config_needs_no_weights(self):
        folder = self.model_copy()
        (folder / "model.safetensors").unlink()
        self.write_config(model__path=str(folder), sworker__device="cuda:0")
        for flag in ("--check-config", "--check_config"):
            status, output, errors = self.sworker("--config", self.config, flag)
            self.assertEqual(status, 0, errors)
            effective = json.loads(output)
            self.assertEqual(effective["pipeline"]["mini_batches"], 2)
            self.assertEqual(effective["transport"]["heartbeat_ms"], 500)

    def test_unknown_key(self):
        self.assert_refused("pipeline.max_bach", "max_batch", pipeline__max_bach=3)

    def test_no_model_folder(self):
        self.assert_refused("config.json", model__path=str(self.folder / "none"))

    def test_no_gpu(self):
        self.write_config(
            rworkers__count=None, rworkers__hosts=[{"address": "127.0.0.1:9"}], sworker__device="cuda:0"
        )
        (self.folder / "cluster.secret").write_text("5" * 64 + "\n")
        (self.folder / "cluster.secret").chmod(0o600)
        status, _, errors = self.sworker("--config", self.config)
        self.assertEqual(status, 3, errors)
        self.assertIn("cuda:0", errors)

    def test_damaged_weights(self):
        folder = self.model_copy()
        file = folder / "model.safetensors"
        whole = file.read_bytes()
        length = int.from_bytes(whole[:8], "little")
        header = json.loads(whole[8 : 8 + length])

        def write(changed, data=whole[8 + length :]):
            text = json.dumps(changed).encode()
            file.write_bytes(len(text).to_bytes(8, "little") + text + data)

        name = "model.layers.1.mlp.up_proj.weight"
        file.write_bytes(whole[: len(whole) // 2])
        self.assert_refused("model.safetensors", model__path=str(folder))
        file.write_bytes(whole[:5])
        self.assert_refused("model.safetensors", model__path=str(folder))
        lying = json.loads(json.dumps(header))
        lying[name]["data_offsets"][1] += 1 << 40
        write(lying)
        self.assert_refused(name, model__path=str(folder))
        write({"another" if key == name else key: value for key, value in header.items()})
        self.assert_refused(name, model__path=str(folder))
        wrong = json.loads(json.dumps(header))
        wrong[name]["shape"] = list(reversed(wrong[name]["shape"]))
        write(wrong)
        self.assert_refused(name, "shape", model__path=str(folder))
        file.write_bytes((1 << 63).to_bytes(8, "little") + whole[8:])
        self.assert_refused("model.safetensors", model__path=str(folder))


if __name__ == "__main__":
    main()
