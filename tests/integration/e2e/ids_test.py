"""Greedy ids of the whole system against Hugging Face's, for every case of every model that the repository carries,
and across numbers of R-workers, mini-batches and sequences in flight."""

from e2e_case import REPOSITORY, E2eCase, Run, eventually, main, oracle

MODELS = ["tinystories-656k", "tinystories-656k-bf16", "stories260K-hf", "tiny-llama3"]
# models/README.md: across batch sizes, R-workers and mini-batches at most 1 case in 50 may differ.
SAME_SHARE = 50


def answers(model):
    return oracle(model.removesuffix("-bf16"))


class Ids(E2eCase):
    def run_cases(self, model, batch, rworkers, mini_batches):
        """All cases, `batch` in flight; [ids]."""
        self.write_config(
            model__path=str(REPOSITORY / "models" / model),
            rworkers__count=rworkers,
            pipeline__max_batch=max(batch, mini_batches),
            pipeline__mini_batches=mini_batches,
        )
        self.up()
        client = self.connect()
        run = Run(client)
        cases = answers(model)
        requests = []
        for case in cases:
            run.wait(lambda: run.submitted - len(run.finished) < batch)
            requests.append(run.submit(case["prompt_ids"], max_tokens=48))
        run.wait()
        ids = [run.ids(request) for request in requests]
        eventually(lambda: self.rworkers_free(client, rworkers), "every KV block is free")
        self.ok("down", self.config)
        return ids

    def test_every_case_of_every_model(self):
        for model in MODELS:
            with self.subTest(model=model):
                ids = self.run_cases(model, batch=64, rworkers=2, mini_batches=2)
                accepted = self.assert_agrees(answers(model), list(enumerate(ids)))
                print(f"{model}: {len(ids)} cases, accepted near-ties: {accepted}")

    def test_the_deployment_does_not_change_the_ids(self):
        model = "tiny-llama3"
        cases = answers(model)
        for batch, rworkers, mini_batches in [(1, 1, 1), (7, 3, 2), (7, 2, 3), (64, 3, 3), (64, 1, 2), (64, 2, 1)]:
            with self.subTest(batch=batch, rworkers=rworkers, mini_batches=mini_batches):
                ids = self.run_cases(model, batch, rworkers, mini_batches)
                accepted = self.assert_agrees(cases, list(enumerate(ids)))
                self.assertLessEqual(len(accepted), 1 + len(cases) // SAME_SHARE)


if __name__ == "__main__":
    main()
