"""The commands: up, status, logs, restart, down. Each returns the exit status."""

import json
import subprocess
import sys
import threading

from . import plan
from .cluster import Cluster, exit_text
from .errors import EXIT_OK, EXIT_USAGE, EXIT_WORKER, HostUnreachable, Interrupted, LaunchError
from .hosts import Host
from .run_folder import RunFolder
from .watch import Watch


def say(line):
    print(line, flush=True)


def _loaded(folder):
    state = folder.load()
    if state is None:
        raise LaunchError(f"{folder.config} is not up", EXIT_USAGE)
    return Cluster(folder, state, say)


def _clear_remains(folder):
    """Refuses to go on beside a live cluster; cleans up after a dead one."""
    state = folder.load()
    if state is None:
        return
    cluster = Cluster(folder, state, say)
    states = cluster.states()
    alive = [name for name, (word, _) in states.items() if word == "alive"]
    if len(alive) == len(states):
        raise LaunchError(f"{folder.config} is already up; \"fastdecode-cluster down\" ends it", EXIT_USAGE)
    if alive:
        dead = ", ".join(name for name in states if name not in alive)
        raise LaunchError(f"{folder.config} is up in part ({dead} not): bring a worker back with \"restart\", "
                          "or end all with \"down\"", EXIT_USAGE)
    say("an earlier run left its traces but none of its processes; cleaned up")
    for name, (word, why) in states.items():
        if word == "unreachable":
            say(f"warning: {name} of that run may still be there: {why}")
    cluster.clean()
    folder.forget()


def _prepare(folder, options):
    """Reads the config, deals addresses and CPUs, writes the run folder."""
    config = plan.read_effective(f"{options.programs}/fastdecode-sworker", options.config)
    if plan.ensure_secret(config["transport"]["secret_file"]):
        say(f"created the secret {config['transport']['secret_file']}")
    plan.name_hosts(config, folder.reserved_ports())
    names = {host.get("ssh", "") for host in config["rworkers"]["hosts"]} | {""}
    probes = plan.probe_hosts({ssh: Host(folder.key, ssh, options.ssh_config) for ssh in sorted(names)})
    dealt = plan.deal_cpus(config, probes, say)
    state = plan.make_state(config, dealt, options.programs, folder, options.ssh_config)
    if options.rworkers_only:
        state.workers.pop()
    folder.create()
    folder.save_effective(config)
    folder.save(state)  # before the first process, so that `down` finds whatever was started
    return Cluster(folder, state, say)


def _bring_up(folder, options):
    cluster = None
    try:
        with folder.port_lock():
            cluster = _prepare(folder, options)
            cluster.start(cluster.state.rworkers(), options.timeout)
        if cluster.state.has_sworker():
            cluster.start(cluster.state.workers[-1:], options.timeout)
    except BaseException:
        if cluster is not None:
            say("taking down what was started")
            cluster.stop(options.grace)
            cluster.clean(local=False)
            folder.forget()
            say(f"logs stay in {folder.path}")
        raise
    folder.save(cluster.state)
    return cluster


def _take_down(folder, grace):
    state = folder.load()
    if state is None:
        return EXIT_OK
    cluster = Cluster(folder, state, say)
    if cluster.stop(grace):
        return EXIT_WORKER
    cluster.clean()
    return EXIT_OK


def up(options):
    folder = RunFolder(options.config)
    cluster = None
    status = EXIT_OK
    try:
        with folder.lock(say):
            _clear_remains(folder)
            cluster = _bring_up(folder, options)
        what = plan.plural(len(cluster.state.rworkers()), "R-worker")
        if cluster.state.has_sworker():
            what = f"the S-worker and {what}"
        if options.detach:
            say(f"up: {what}; \"fastdecode-cluster down {options.config}\" ends them")
            return EXIT_OK
        say(f"up: {what}; Ctrl-C ends them")
        status = Watch(cluster).run()
    except Interrupted:
        if cluster is None:
            raise LaunchError("interrupted before everything was ready") from None
    with folder.lock(say):
        return max(status, _take_down(folder, options.grace))


def down(options):
    folder = RunFolder(options.config)
    with folder.lock(say):
        if folder.load() is None:
            say(f"{folder.config} is not up")
            folder.remove_remains()
        return _take_down(folder, options.grace)


def restart(options):
    folder = RunFolder(options.config)
    with folder.lock(say):
        cluster = _loaded(folder)
        worker = cluster.state.worker(options.name)
        cluster.stop_one(worker, options.grace)
        cluster.start([worker], options.timeout)
        folder.save(cluster.state)
    return EXIT_OK


def status(options):
    folder = RunFolder(options.config)
    state = folder.load()
    if state is None:
        say(json.dumps({"up": False, "workers": []}) if options.json else f"{folder.config} is not up")
        return EXIT_WORKER
    states = Cluster(folder, state, say).states()
    is_up = all(word == "alive" for word, _ in states.values())
    if options.json:
        workers = [{"name": worker.name, "address": worker.address, "host": worker.ssh,
                    "state": states[worker.name][0], "detail": states[worker.name][1]} for worker in state.workers]
        sworker = state.worker("sworker").address if state.has_sworker() else None
        say(json.dumps({"up": is_up, "sworker": sworker, "sworker_cpus": state.sworker_cpus,
                        "secret_file": state.secret_file, "effective_config": str(folder.effective_config),
                        "workers": workers}, indent=1))
        return EXIT_OK if is_up else EXIT_WORKER
    for worker in state.workers:
        word, value = states[worker.name]
        text = {"alive": f"alive  {worker.address:<24} pid {value:<8}{worker.about}",
                "dead": f"DEAD   {worker.address:<24} {exit_text(value) if word == 'dead' else ''}",
                "unreachable": f"?      {worker.address:<24} {value}"}[word]
        say(f"{worker.name:<10} {text}")
    return EXIT_OK if is_up else EXIT_WORKER


def _follow(cluster, workers, lines):
    """Prints the logs as they grow, until interrupted."""
    processes = []

    def copy(prefix, process):
        for line in process.stdout:
            sys.stdout.write(prefix + line)
            sys.stdout.flush()

    threads = []
    try:
        for worker in workers:
            process = cluster.host(worker).popen("follow", worker.name, lines, stdin=subprocess.DEVNULL,
                                                 stdout=subprocess.PIPE, text=True, errors="replace")
            processes.append(process)
            prefix = f"{worker.name:<10} " if len(workers) > 1 else ""
            threads.append(threading.Thread(target=copy, args=(prefix, process), daemon=True))
            threads[-1].start()
        for process in processes:
            process.wait()
    except Interrupted:
        pass
    finally:
        for process in processes:
            process.kill()
            process.wait()
        for thread in threads:
            thread.join()


def logs(options):
    folder = RunFolder(options.config)
    state = folder.load()
    if state is None:
        left = sorted(folder.path.glob("*.log"))
        raise LaunchError(f"{folder.config} is not up" + (f"; the last attempt's logs are in {folder.path}"
                                                          if left else ""), EXIT_USAGE)
    cluster = Cluster(folder, state, say)
    workers = [state.worker(options.name)] if options.name else state.workers
    if options.follow:
        _follow(cluster, workers, options.lines)
        return EXIT_OK
    for worker in workers:
        if len(workers) > 1:
            say(f"--- {worker.name}")
        try:
            _, out, err = cluster.host(worker).call("tail", worker.name, options.lines)
            say((out + err).rstrip("\n"))
        except HostUnreachable as error:
            say(str(error))
    return EXIT_OK
