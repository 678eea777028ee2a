"""A cluster of real processes, forked off one that has imported everything, and supervised.

`python hybrid_processes.py JSON`: prints JSON, what became of it; see `run`. What a server or
worker that dies is: started anew, as `twml-ops launch` or Kubernetes would.
"""

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback

import tensorflow as tf
from hybrid_model import batches, builder

from twml_ops import optimizers
from twml_ops.distribute import Cluster, HybridTrainer, exit_if_lost, serve
from twml_ops.distribute.launch import free_ports

ALL = tf.distribute.InputContext()
CLONE_NEWNET = 0x40000000
LIMIT = 240  # seconds, of which only a hang makes use


def task(cluster, data, steps, options, slow, report):
    """In a child: one server or worker, to the end."""
    try:
        if cluster.job == "ps":
            serve(cluster)
        with exit_if_lost():
            trainer = HybridTrainer(
                builder, optimizers.Adagrad(0.1), "binary_crossentropy", cluster=cluster, **options
            )

            def on_step(step, loss):
                del loss
                report(f"step {step}")
                time.sleep(slow if cluster.index else 0)

            result = trainer.fit(data, steps, on_step)
            report(f"step {result.step}")  # its last step may be another's, who died unheard
            losses = result.losses[-16:]
            report(f"loss {sum(losses) / len(losses) if losses else float('nan')}")
            report(f"own {result.own_steps}")
            if cluster.is_chief:
                report(f"final {trainer.evaluate(data(ALL))['loss']}")
                weights = [w.tolist() for w in trainer.export().get_weights()]
                report("weights " + json.dumps(weights))
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def run(
    servers,
    workers,
    steps,
    kills=(),
    stops=(),
    heal=None,
    slow=0.0,
    network=False,
    one_batch=False,
    **options,
):
    """Trains in `servers` + `workers` processes until the workers are done.

    Args:
        kills: (step of the run, job, index): killed once a worker has reported that step.
        stops: the same of processes that cannot be reached from then on: all their threads are
            stopped, or, with `network`, their host's interface is down.
        heal: after how many deaths they are reached again; None: once the chief is done.
        slow: seconds that each step of all workers but the chief takes longer.
        network: whether each process is on a host, that is, a network namespace, of its own.
        one_batch: whether all steps have the same data, so that it does not matter where a process
            that was started anew begins.

    Returns:
        step, losses and own steps by worker, the final weights and log loss on all data, deaths
        by task, seconds, perhaps "hang".
    """
    with hosts(servers + workers) if network else contextlib.nullcontext() as net:
        data = (lambda context: batches(context)[:1]) if one_batch else batches
        return supervise(net, servers, workers, steps, kills, stops, heal, slow, data, options)


def supervise(net, servers, workers, steps, kills, stops, heal, slow, data, options):
    ports = free_ports(servers + workers)
    names = ["127.0.0.1"] * len(ports) if net is None else [net.address(h) for h in net.hosts]
    addresses = [f"{name}:{port}" for name, port in zip(names, ports, strict=True)]
    alive, pipes, deaths, kills, stops, stopped = {}, {}, [], list(kills), list(stops), []
    found = {"step": 0, "loss": {}, "own": {}, "weights": None, "final": None, "deaths": deaths}
    start = time.monotonic()

    def begin(job, index):
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(reading)
            if net is not None:
                enter(net, index if job == "ps" else servers + index)
            cluster = Cluster(addresses[:servers], addresses[servers:], job, index)
            own_slow = slow if job == "worker" else 0
            task(cluster, data, steps, options, own_slow,
                 lambda line: os.write(writing, f"{line}\n".encode()))  # fmt: skip
        os.close(writing)
        os.set_blocking(reading, False)
        alive[pid], pipes[pid] = (job, index), [reading, b""]

    def read(pid):
        pipe = pipes[pid]
        while True:
            try:
                got = os.read(pipe[0], 1 << 16)
            except BlockingIOError:
                break
            if not got:
                break
            pipe[1] += got
        *lines, pipe[1] = pipe[1].split(b"\n")
        for line in lines:
            kind, _, value = line.decode().partition(" ")
            if kind == "step":
                found["step"] = max(found["step"], int(value))
            elif kind in ("weights", "final"):
                found[kind] = json.loads(value)
            else:
                found[kind][alive[pid][1]] = float(value)

    def reach(victims, again):
        """Cuts processes off, or reaches them again."""
        for job, index in victims:
            if net is not None:
                host = net.hosts[index if job == "ps" else servers + index]
                state = "up" if again else "down"
                command = net.on(host, ["ip", "link", "set", "eth0", state])
                subprocess.run(command, check=True)
                continue
            for pid in [p for p, t in alive.items() if t == (job, index)]:
                os.kill(pid, signal.SIGCONT if again else signal.SIGSTOP)

    for job, count in (("ps", servers), ("worker", workers)):
        for index in range(count):
            begin(job, index)
    while any(job == "worker" for job, _ in alive.values()):
        if time.monotonic() - start > LIMIT:
            found["hang"] = sorted(alive.values())
            break
        for pid in list(alive):
            read(pid)
        if kills and found["step"] >= kills[0][0]:
            _, *victim = kills.pop(0)
            for pid in [p for p, t in alive.items() if list(t) == victim]:
                os.kill(pid, signal.SIGKILL)
        if stops and found["step"] >= stops[0][0]:
            _, *victim = stops.pop(0)
            stopped.append(tuple(victim))
            reach(stopped, False)
        chief_done = ("worker", 0) not in alive.values()
        if stopped and (chief_done if heal is None else len(deaths) >= heal):
            found["healed"] = found["step"]
            reach(stopped, True)
            stopped.clear()
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            time.sleep(0.01)
            continue
        read(pid)
        job, index = alive.pop(pid)
        if status:
            deaths.append([job, index, status])
            if os.waitstatus_to_exitcode(status) == 1:
                break
            begin(job, index)
    for pid in alive:
        os.kill(pid, signal.SIGKILL)
    for pid in alive:
        os.waitpid(pid, 0)
    found["seconds"] = round(time.monotonic() - start, 1)
    return found


@contextlib.contextmanager
def hosts(count):
    """So many hosts on a network of their own."""
    from benchmarks.distributed.network import Network

    with Network([f"h{i}" for i in range(count)]) as network:
        yield network


def enter(network, i):
    """Puts this process on host `i`."""
    name = network.on(network.hosts[i], [])[-1]
    with open(f"/run/netns/{name}") as handle:
        if ctypes.CDLL(None, use_errno=True).setns(handle.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "setns")


if __name__ == "__main__":
    results = {}
    for name, what in json.loads(sys.argv[1]).items():
        with tempfile.TemporaryDirectory() as folder:
            if what.pop("checkpoints", False):
                what["checkpoint_dir"] = folder
            results[name] = run(**what)
    print(json.dumps(results))
