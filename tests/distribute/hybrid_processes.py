"""A cluster of real processes, forked off one that has imported everything, and supervised.

test_hybrid_processes.py asks for runs; see `run`. A server or worker that dies is started anew, as
`twml-ops launch` or Kubernetes would do.
"""

import contextlib
import ctypes
import json
import os
import select
import signal
import subprocess
import tempfile
import time
import traceback

import tensorflow as tf

from tests.children import answer
from tests.distribute.hybrid_model import batches, builder
from twml_ops import optimizers
from twml_ops.distribute import Cluster, HybridTrainer, exit_on_cluster_error, serve
from twml_ops.distribute.launch import Ports

ALL = tf.distribute.InputContext()
CLONE_NEWNET = 0x40000000
LIMIT = 600  # seconds: only a run that hangs needs them


def task(cluster, data, steps, options, patience, pause, report):
    """In a child: one server or worker, to the end."""
    try:
        if cluster.job == "ps":
            serve(cluster)
        with exit_on_cluster_error():
            trainer = HybridTrainer(
                builder, optimizers.Adagrad(0.1), "binary_crossentropy", cluster=cluster, **options
            )
            own = 0

            def on_step(step, loss):
                nonlocal own
                del loss
                own += 1
                report(f"step {step}")
                if patience is not None:
                    trainer._timeout = patience
                if own == pause:
                    report("paused")
                    os.kill(os.getpid(), signal.SIGSTOP)

            result = trainer.fit(data, steps, on_step)
            report(f"end {result.step}")  # the last step may be of a worker that has died since
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
    pause=None,
    heal=None,
    patience=None,
    network=False,
    one_batch=False,
    **options,
):
    """Trains in `servers` + `workers` processes until the workers are done.

    Args:
        kills: (step of the run, job, index): killed once a worker has reported that step.
        stops: the same of processes that cannot be reached from then on: all their threads are
            stopped, or, with `network`, their host's interface is down.
        pause: (index, steps): that worker stops all its threads after so many steps of its own.
        heal: stopped processes go on once so many others have died; None: once the chief is done.
        patience: the trainers' timeout after their first step, before which much is imported and
            traced; None: as before.
        network: whether each process is on a host, that is, a network namespace, of its own.
        one_batch: whether all steps have the same data, so that it does not matter where a process
            that was started anew begins.

    Returns:
        step, losses and own steps by worker, the final weights and log loss on all data, deaths
        by task, steps reported by worker when stopped processes went on ("taken"), perhaps "hang".
    """
    with hosts(servers + workers) if network else contextlib.nullcontext() as net:
        data = (lambda context: batches(context)[:1]) if one_batch else batches
        supervisor = Supervisor(net, servers, workers, steps, data, options, patience, pause)
        return supervisor.supervise(list(kills), list(stops), heal)


class Supervisor:
    """The processes of a run, by pid, and what they have reported."""

    def __init__(self, net, servers, workers, steps, data, options, patience, pause):
        self.net, self.servers, self.workers = net, servers, workers
        self.steps, self.data, self.options, self.patience = steps, data, options, patience
        self.pause = pause
        self.ports = Ports(servers + workers)
        names = ["127.0.0.1"] * (servers + workers)
        if net is not None:
            names = [net.address(h) for h in net.hosts]
        numbered = zip(names, self.ports.numbers, strict=True)
        self.addresses = [f"{name}:{port}" for name, port in numbered]
        self.alive, self.pipes, self.stopped = {}, {}, []
        self.died_since = set()  # tasks, since others were stopped
        self.taken = {str(i): 0 for i in range(workers)}
        self.found = {"step": 0, "loss": {}, "own": {}, "weights": None, "final": None}
        self.found["deaths"] = []

    def begin(self, job, index):
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(reading)
            if self.net is not None:
                enter(self.net, index if job == "ps" else self.servers + index)
            addresses = self.addresses
            cluster = Cluster(addresses[: self.servers], addresses[self.servers :], job, index)
            own_pause = None
            if self.pause is not None and [job, index] == ["worker", self.pause[0]]:
                own_pause = self.pause[1]
            task(cluster, self.data, self.steps, self.options, self.patience, own_pause,
                 lambda line: os.write(writing, f"{line}\n".encode()))  # fmt: skip
        os.close(writing)
        self.alive[pid], self.pipes[reading] = (job, index), [pid, b""]

    def read(self, pipe):
        """Takes what a process has reported; whether it has ended."""
        got = os.read(pipe, 1 << 16)
        pid, rest = self.pipes[pipe]
        *lines, self.pipes[pipe][1] = (rest + got).split(b"\n")
        for line in lines:
            self.note(pid, *line.decode().partition(" ")[::2])
        return not got

    def note(self, pid, kind, value):
        job, index = self.alive[pid]
        found = self.found
        if kind in ("step", "end"):
            found["step"] = max(found["step"], int(value))
            self.taken[str(index)] += kind == "step"
        elif kind == "paused":
            os.waitpid(pid, os.WUNTRACED)  # until it has stopped
            self.pause = None
            self.stopped.append((job, index))
            self.died_since.clear()
        elif kind in ("weights", "final"):
            found[kind] = json.loads(value)
        else:
            found[kind][index] = float(value)

    def reach(self, victims, again):
        """Cuts processes off, or reaches them again."""
        for job, index in victims:
            if self.net is not None:
                host = self.net.hosts[index if job == "ps" else self.servers + index]
                state = "up" if again else "down"
                command = self.net.on(host, ["ip", "link", "set", "eth0", state])
                subprocess.run(command, check=True)
                continue
            self.signal((job, index), signal.SIGCONT if again else signal.SIGSTOP)

    def signal(self, victim, number):
        for pid in [p for p, t in self.alive.items() if t == victim]:
            os.kill(pid, number)

    def disturb(self, kills, stops, heal):
        """Does what is due at the step that the run has reached."""
        step = self.found["step"]
        if kills and step >= kills[0][0]:
            _, *victim = kills.pop(0)
            self.signal(tuple(victim), signal.SIGKILL)
        if stops and step >= stops[0][0]:
            _, *victim = stops.pop(0)
            self.reach([tuple(victim)], False)
            self.stopped.append(tuple(victim))
            self.died_since.clear()
        chief_done = ("worker", 0) not in self.alive.values()
        if self.stopped and (chief_done if heal is None else len(self.died_since) >= heal):
            self.found["healed"], self.found["taken"] = step, dict(self.taken)
            self.reach(self.stopped, True)
            self.stopped.clear()

    def end(self, pipe):
        """A process has ended: starts it anew, if it has not succeeded; whether it has failed."""
        pid, _ = self.pipes.pop(pipe)
        os.close(pipe)
        _, status = os.waitpid(pid, 0)
        job, index = self.alive.pop(pid)
        if not status:
            return False
        self.found["deaths"].append([job, index, status])
        self.died_since.add((job, index))
        if os.waitstatus_to_exitcode(status) == 1:
            return True
        self.begin(job, index)
        return False

    def supervise(self, kills, stops, heal):
        for job, count in (("ps", self.servers), ("worker", self.workers)):
            for index in range(count):
                self.begin(job, index)
        deadline, failed = time.monotonic() + LIMIT, False
        while not failed and any(job == "worker" for job, _ in self.alive.values()):
            left = max(0, deadline - time.monotonic())
            ready, _, _ = select.select(list(self.pipes), [], [], left)
            if not ready:
                self.found["hang"] = sorted(self.alive.values())
                break
            for pipe in ready:
                if self.read(pipe):
                    failed |= self.end(pipe)
            self.disturb(kills, stops, heal)
        for pid in self.alive:
            os.kill(pid, signal.SIGKILL)
        for pid in self.alive:
            os.waitpid(pid, 0)
        for pipe in self.pipes:
            os.close(pipe)
        self.ports.close()
        return self.found


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


def reply(scenario):
    """What became of a run."""
    with tempfile.TemporaryDirectory() as folder:
        if scenario.pop("checkpoints", False):
            scenario["checkpoint_dir"] = folder
        return run(**scenario)


if __name__ == "__main__":
    answer(reply)
