"""Deals the CPUs of one host to the workers on it: disjoint sets, near their memory.

An R-worker is bound by memory bandwidth, so its set stays within one NUMA node where one
has room, and takes one CPU of each core before it takes any core's second.
"""

from dataclasses import dataclass, field


@dataclass
class HostCpus:
    """What worker.sh's probe says of a host."""

    boot: str = ""  # tells whether two names mean one machine
    allowed: list = field(default_factory=list)
    quota: float = float("inf")  # CPUs' worth of time that the cgroup grants
    nodes: list = field(default_factory=list)  # lists of CPUs
    cores: list = field(default_factory=list)  # lists of CPUs that share one

    @property
    def budget(self):
        """How many threads may be busy at once."""
        return max(1, int(min(len(self.allowed), self.quota)))


def parse_list(text):
    """"0-2,5" -> [0, 1, 2, 5]"""
    cpus = []
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        if first.strip():
            cpus.extend(range(int(first), int(last or first) + 1))
    return cpus


def format_list(cpus):
    """[0, 1, 2, 5] -> "0-2,5\""""
    runs = []
    for cpu in sorted(cpus):
        if runs and runs[-1][1] == cpu - 1:
            runs[-1][1] = cpu
        else:
            runs.append([cpu, cpu])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def parse_probe(text):
    host = HostCpus()
    for line in text.splitlines():
        kind, _, value = line.strip().partition(" ")
        if kind == "boot":
            host.boot = value
        elif kind.startswith("allowed"):  # a tab follows in /proc
            host.allowed = parse_list(line.split(None, 1)[1])
        elif kind == "quota" and not value.startswith("max"):
            quota, period = value.split()
            host.quota = min(host.quota, int(quota) / int(period))
        elif kind == "node":
            host.nodes.append(parse_list(value))
        elif kind == "core":
            host.cores.append(parse_list(value))
    return host


def resolve_threads(wanted, budget):
    """Replaces each 0 (auto) by an equal share of what the others leave, at least 1."""
    autos = sum(1 for threads in wanted if threads == 0)
    if autos == 0:
        return list(wanted)
    share = max(1, (budget - sum(wanted)) // autos)
    return [threads or share for threads in wanted]


def _ranked(host):
    """The allowed CPUs, each core's first before any core's second."""
    rank = {cpu: core.index(cpu) for core in host.cores for cpu in core}
    return sorted(host.allowed, key=lambda cpu: (rank.get(cpu, 0), cpu))


def deal(host, threads, rest_to_last):
    """A disjoint set of CPUs for each entry of `threads`, or None where there are too few.

    rest_to_last: the last one, the S-worker, also gets every CPU that nobody else took.
    """
    if sum(threads) > host.budget:
        return None
    free = _ranked(host)
    node_of = {cpu: node for node, cpus in enumerate(host.nodes) for cpu in cpus}
    sets = []
    for wanted in threads:
        by_node = {}
        for cpu in free:
            by_node.setdefault(node_of.get(cpu, 0), []).append(cpu)
        roomy = [cpus for cpus in by_node.values() if len(cpus) >= wanted]
        taken = (max(roomy, key=len) if roomy else free)[:wanted]
        free = [cpu for cpu in free if cpu not in taken]
        sets.append(taken)
    if rest_to_last:
        sets[-1] = sets[-1] + free
    return sets
