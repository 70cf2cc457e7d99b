"""The deal of CPUs, on machines laid out by hand."""

import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "scripts" / "launch"))
sys.dont_write_bytecode = True

from fastdecode_launch import cpus  # noqa: E402

# As Linux numbers them: a socket's cores one after the other, all second threads after all first.
TWO_SOCKETS = "boot b\nallowed\t0-15\nnode 0-3,8-11\nnode 4-7,12-15\n" + "".join(
    f"core {core},{core + 8}\n" for core in range(8))


class ListsTest(unittest.TestCase):
    def test_lists_as_linux_writes_them(self):
        self.assertEqual(cpus.parse_list("0-2,5,7-8\n"), [0, 1, 2, 5, 7, 8])
        self.assertEqual(cpus.parse_list(""), [])
        self.assertEqual(cpus.format_list([5, 0, 1, 2, 8, 7]), "0-2,5,7-8")
        self.assertEqual(cpus.format_list([3]), "3")

    def test_probe(self):
        host = cpus.parse_probe(TWO_SOCKETS + "quota 250000 100000\nquota max 100000\n")
        self.assertEqual(host.boot, "b")
        self.assertEqual(host.allowed, list(range(16)))
        self.assertEqual(host.nodes, [[0, 1, 2, 3, 8, 9, 10, 11], [4, 5, 6, 7, 12, 13, 14, 15]])
        self.assertEqual(host.cores[0], [0, 8])
        self.assertEqual(host.budget, 2)  # two and a half CPUs' worth of time keep two threads busy
        self.assertEqual(cpus.parse_probe("allowed\t3\n").budget, 1)


class ThreadsTest(unittest.TestCase):
    def test_auto_shares_what_the_others_leave(self):
        self.assertEqual(cpus.resolve_threads([0, 0], 8), [4, 4])
        self.assertEqual(cpus.resolve_threads([2, 0, 0], 8), [2, 3, 3])
        self.assertEqual(cpus.resolve_threads([1, 2], 8), [1, 2])
        self.assertEqual(cpus.resolve_threads([4, 0], 2), [4, 1])


class DealTest(unittest.TestCase):
    def test_a_socket_each(self):
        host = cpus.parse_probe(TWO_SOCKETS)
        self.assertEqual(cpus.deal(host, [4, 4], False), [[0, 1, 2, 3], [4, 5, 6, 7]])

    def test_rest_goes_to_the_sworker(self):
        host = cpus.parse_probe(TWO_SOCKETS)
        first, sworker = cpus.deal(host, [4, 2], True)
        self.assertEqual(first, [0, 1, 2, 3])
        self.assertEqual(sorted(sworker), list(range(4, 16)))
        self.assertEqual(sworker[:2], [4, 5])

    def test_second_threads_of_cores_come_last(self):
        host = cpus.parse_probe(TWO_SOCKETS)
        sets = cpus.deal(host, [2, 2, 2, 2, 2], False)
        self.assertEqual([max(dealt) < 8 for dealt in sets], [True, True, True, True, False])

    def test_sets_are_disjoint_and_large_enough(self):
        host = cpus.parse_probe(TWO_SOCKETS)
        for threads in ([16], [5, 5, 5], [1] * 16, [7, 2, 7], [12, 4]):
            sets = cpus.deal(host, threads, False)
            dealt = [cpu for one in sets for cpu in one]
            self.assertEqual([len(one) for one in sets], threads)
            self.assertEqual(len(dealt), len(set(dealt)))
            self.assertLessEqual(set(dealt), set(host.allowed))

    def test_only_allowed_cpus_are_dealt(self):
        host = cpus.parse_probe(TWO_SOCKETS.replace("0-15\n", "1,5,9\n", 1))
        self.assertEqual(cpus.deal(host, [1, 1], True), [[1], [5, 9]])

    def test_too_few_cpus_pin_nothing(self):
        host = cpus.parse_probe(TWO_SOCKETS)
        self.assertIsNone(cpus.deal(host, [16, 1], True))
        limited = cpus.parse_probe(TWO_SOCKETS + "quota 200000 100000\n")
        self.assertIsNone(cpus.deal(limited, [2, 1], True))
        self.assertIsNotNone(cpus.deal(limited, [1, 1], True))


if __name__ == "__main__":
    unittest.main()
