"""From a config to the list of processes: addresses, threads, CPUs, command lines."""

import json
import os
import secrets
import socket
import subprocess
from pathlib import Path

from . import cpus
from .errors import EXIT_USAGE, LaunchError
from .run_folder import State, Worker

FIRST_PORT = 7200  # below the range that the kernel deals to outgoing connections
LAST_PORT = 8199
VERBS_DEFAULTS = {"device": "auto", "port": 1, "gid_index": "auto"}


def read_effective(sworker, config):
    """The config as the S-worker reads it: one parser, one set of messages."""
    try:
        done = subprocess.run([sworker, "--config", config, "--check-config"], capture_output=True, text=True)
    except OSError as error:
        raise LaunchError(f"{sworker}: {error.strerror}; build first, or name the build folder with --build",
                          EXIT_USAGE) from None
    if done.returncode != 0:
        text = done.stderr.strip().removeprefix("fastdecode-sworker: ")
        raise LaunchError(text or f"{sworker} --check-config ended with status {done.returncode}", EXIT_USAGE)
    return json.loads(done.stdout)


def ensure_secret(path):
    """Creates the secret file, for its owner alone, where there is none; True if it did."""
    try:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return False
    except OSError as error:
        raise LaunchError(f"transport.secret_file: {path} cannot be created: {error.strerror}", EXIT_USAGE) from None
    with os.fdopen(file, "w") as out:
        out.write(secrets.token_hex(32) + "\n")
    return True


def free_ports(count, taken):
    """Ports of 127.0.0.1 on which nobody listens."""
    ports = []
    for port in range(FIRST_PORT, LAST_PORT + 1):
        if len(ports) == count:
            break
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        if port not in taken:
            ports.append(port)
    if len(ports) < count:
        raise LaunchError(f"fewer than {count} free ports from {FIRST_PORT} to {LAST_PORT}; "
                          "name rworkers.hosts with ports of your own")
    return ports


def name_hosts(config, reserved):
    """Replaces rworkers.count by that many hosts on free ports of this machine that are not reserved."""
    rworkers = config["rworkers"]
    count = rworkers.pop("count", None)
    if count is None:
        return
    api_port = int(config["sworker"]["listen"].rpartition(":")[2])
    rworkers["hosts"] = []
    for port in free_ports(count, reserved | {api_port}):
        address = f"127.0.0.1:{port}"
        rworkers["hosts"].append({"address": address, "listen": address, "threads": rworkers["threads"],
                                  "kv_memory": rworkers["kv_memory"]})


def probe_hosts(hosts):
    """HostCpus of each of {ssh: Host}."""
    found = {}
    for ssh, host in hosts.items():
        status, out, err = host.call("probe")
        if status != 0:
            raise LaunchError(f"{host.name}: {err.strip()}")
        found[ssh] = cpus.parse_probe(out)
    return found


def number(threads):
    return 0 if threads == "auto" else threads


def deal_cpus(config, probes, say):
    """Settles every "auto" of threads; gives the CPU list ("-": none) of each host and of the S-worker."""
    machines = {}  # two ways to one machine share its CPUs
    for index, host in enumerate(config["rworkers"]["hosts"]):
        machines.setdefault(probes[host.get("ssh", "")].boot, []).append(index)
    machines.setdefault(probes[""].boot, []).append(None)  # None: the S-worker

    entries = {index: host for index, host in enumerate(config["rworkers"]["hosts"])}
    entries[None] = config["sworker"]
    dealt = {}
    for members in machines.values():
        first = members[0]
        ssh = "" if first is None else entries[first].get("ssh", "")
        host = probes[ssh]
        threads = cpus.resolve_threads([number(entries[m]["threads"]) for m in members], host.budget)
        for member, count in zip(members, threads):
            entries[member]["threads"] = count
        sets = cpus.deal(host, threads, rest_to_last=members[-1] is None)
        if sets is None:
            say(f"{ssh or 'this host'}: {sum(threads)} threads for {host.budget} CPUs, so none is pinned")
        if sets is None and members[-1] is None:
            config["sworker"]["pin"] = False
        for position, member in enumerate(members):
            dealt[member] = "-" if sets is None else cpus.format_list(sets[position])
    return dealt


def plural(count, noun):
    return f"{count} {noun}" + ("" if count == 1 else "s")


def pinned(cpu_list):
    return "" if cpu_list == "-" else f", on CPU {cpu_list}"


def rworker(index, host, config, programs, cpu_list):
    folder = host.get("bin") or programs
    argv = [f"{folder}/fastdecode-rworker", "--listen", host["listen"], "--kv_memory", host["kv_memory"],
            "--threads", str(host["threads"]), "--transport", config["transport"]["kind"],
            "--model_shape", config["model"]["shape"]]
    if config["rworkers"]["kernel"] != "auto":
        argv += ["--kernel", config["rworkers"]["kernel"]]
    if config["transport"]["spin_us"] != "auto":
        argv += ["--spin_us", str(config["transport"]["spin_us"])]
    verbs = config["transport"]["verbs"]
    argv += [f"--verbs_{key}={verbs[key]}" for key in ("device", "port", "gid_index") if verbs[key] != VERBS_DEFAULTS[key]]
    if cpu_list == "-":
        argv.append("--pin=false")  # alone it would not know of the other processes of its host
    ssh = host.get("ssh", "")
    if not ssh:
        argv += ["--secret_file", config["transport"]["secret_file"]]
    memory = host["kv_memory"] + (" of the free memory as" if host["kv_memory"].endswith("%") else " of")
    about = f"{plural(host['threads'], 'thread')}, {memory} KV cache{pinned(cpu_list)}"
    return Worker(f"rworker-{index}", ssh, host["address"], argv, cpu_list, about + (f", by ssh {ssh}" if ssh else ""))


def make_state(config, dealt, programs, folder, ssh_config):
    hosts = config["rworkers"]["hosts"]
    workers = [rworker(i, host, config, programs, dealt[i]) for i, host in enumerate(hosts)]
    sworker = config["sworker"]
    model = Path(config["model"]["path"]).name
    weights = " with random weights" if config["model"]["weights"] == "random" else ""
    about = f"{model}{weights} on {sworker['device']}, {plural(sworker['threads'], 'thread')}{pinned(dealt[None])}"
    argv = [f"{programs}/fastdecode-sworker", "--config", str(folder.effective_config)]
    workers.append(Worker("sworker", "", sworker["listen"], argv, dealt[None], about))
    return State(folder.config, ssh_config, config["transport"]["secret_file"], workers, dealt[None])
