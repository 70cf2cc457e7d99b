"""512 requests with the lengths of the Azure conversation trace over three R-workers: all finish, none is lost or
doubled, W as the R-workers report it stays within its limit at every step, and every KV block is free at the end."""

import csv
import random

from e2e_case import PATIENCE_S, REPOSITORY, E2eCase, Run, eventually, main

CONTEXT = 512  # of tinystories-656k
VOCABULARY = 2048
REQUESTS = 512


def lengths():
    """prompt = min(p, context / 2), output = min(o, context - prompt)"""
    with open(REPOSITORY / "bench" / "traces" / "azure_conv_2023.csv", newline="") as file:
        rows = [(int(row["ContextTokens"]), int(row["GeneratedTokens"])) for row in csv.DictReader(file)]
    pairs = []
    for prompt, output in rows[:REQUESTS]:
        prompt = max(1, min(prompt, CONTEXT // 2))
        pairs.append((prompt, max(1, min(output, CONTEXT - prompt))))
    return pairs


class Trace(E2eCase):
    def run_trace(self, load_control):
        self.write_config(rworkers__count=3, pipeline__max_batch=64, load_control__enabled=load_control)
        self.up()
        client = self.connect()
        draw = random.Random(7)
        run = Run(client)
        wanted = lengths()
        self.assertEqual(len(wanted), REQUESTS)
        client.stats(reset=True)
        for prompt, output in wanted:
            run.submit([draw.randrange(3, VOCABULARY) for _ in range(prompt)], max_tokens=output, ignore_eos=True)
        run.wait(seconds=4 * PATIENCE_S)
        for request, (prompt, output) in enumerate(wanted, start=1):
            self.assertEqual(run.finished[request]["finish_reason"], "length", run.finished[request])
            self.assertEqual(len(run.ids(request)), output)
            self.assertEqual(run.finished[request]["prompt_tokens"], prompt)
        eventually(lambda: self.rworkers_free(client, 3), "every KV block is free")
        stats = client.stats()
        self.assertEqual(stats["window"]["output_tokens"], sum(output for _, output in wanted))
        return stats

    def test_w_stays_within_its_limit(self):
        stats = self.run_trace(load_control=True)
        workload = stats["window"]["workload"]
        # By the S-worker's sum of what O's headers say, and by each R-worker's own account.
        self.assertLessEqual(workload["peak"], workload["limit"])
        self.assertGreater(workload["peak"], 0)
        for rworker in stats["rworkers"]:
            self.assertLessEqual(rworker["peak_workload"], workload["limit"])
        print(f"W: peak {workload['peak']}, mean {workload['mean']:.0f}, limit {workload['limit']}")

    def test_without_load_control(self):
        self.run_trace(load_control=False)


if __name__ == "__main__":
    main()
