"""The transports' contract and seeded faults over verbs, as contract_test.py has them, but with the two ends on two hosts
on a cable. Usage: two_hosts_test.py BUILD_FOLDER"""

from rdma_case import RdmaCase, main

NEAR, FAR = "10.9.0.1", "10.9.0.2"
TIMEOUT_S = 900  # each; two or three minutes for all where nothing else runs


class TwoHosts(RdmaCase):
    def test_the_suites(self):
        cable = self.lay_cable("near", "far")
        near = self.boot("near", ["transport_contract_far_test", "transport_faults_far_test"], cpus=1, address=NEAR, cable=cable, echo=True)
        far = self.boot("far", ["far_end"], cpus=1, address=FAR, cable=cable, echo=True)
        far.spawn(f"exec far_end {NEAR}")
        for suite in ("transport_contract_far_test", "transport_faults_far_test --seeds=20"):
            result = near.run(f"{suite} --gtest_print_time=1", TIMEOUT_S)
            self.assertEqual(result.status, 0)
            self.assertNotIn("SKIPPED", result.output)
            self.assertRegex(result.output, r"PASSED.* [1-9]\d* tests?")


if __name__ == "__main__":
    main()
