"""Runs clusters of real processes, in which faults are injected. The script of a child process.

test_failures.py requests runs, see `run`. The processes are forked from one that has
imported all modules. A server or worker that dies is restarted, as `twml-ops launch` or Kubernetes
would do.
"""

import contextlib
import ctypes
import functools
import json
import os
import select
import signal
import subprocess
import tempfile
import time
import traceback

import tensorflow as tf

from tests.child_process import serve_requests
from tests.distribute.parameter_server.model import (
    batches,
    builder,
    dynamic_model,
    id_batches,
    model_of_tables,
    model_with_states,
    optimizer_of_tables,
    plan_of_tables,
    towers_model,
)
from twml_ops import optimizers
from twml_ops.distribute import Cluster, HybridTrainer, exit_on_cluster_error, serve
from twml_ops.distribute.launch import Ports
from twml_ops.distribute.parameter_server.state import GENERATIONS

ALL = tf.distribute.InputContext()
CLONE_NEWNET = 0x40000000
TIMEOUT = 600  # seconds; only a run that hangs needs as much


def id_batches_of_worker(context):
    return id_batches(part=context.input_pipeline_id, parts=context.num_input_pipelines)


def run_task(cluster, data, steps, options, later_timeout, pause, paused, report):
    """Runs one server or worker in a forked process, and ends the process.

    After as many steps as another worker does before it stops, a worker waits until that one has
    stopped: `paused` is a pipe that ends then.
    """
    try:
        if cluster.job == "ps":
            serve(cluster)
        ids = {name: options.pop(name) for name in ("in_halves", "uses") if name in options}
        of_ids = functools.partial(dynamic_model, **ids)
        build = of_ids if options.pop("rows_of_ids", False) else builder
        build = towers_model if options.pop("towers", False) else build
        build = model_with_states if options.pop("states", False) else build
        optimizer, loss = optimizers.Adagrad(0.1), "binary_crossentropy"
        if "global_clipnorm" in options:
            optimizer = optimizers.SGD(0.5, global_clipnorm=options.pop("global_clipnorm"))
        options.setdefault("replicated_rows", 0)
        names = options.pop("tables", None)
        if names is not None:
            build, optimizer = functools.partial(model_of_tables, names), optimizer_of_tables(names)
            loss, options["plan"] = "mse", plan_of_tables(names, len(cluster.servers))
        with exit_on_cluster_error():
            trainer = HybridTrainer(build, optimizer, loss, cluster=cluster, **options)
            own = 0

            def on_step(step, loss):
                nonlocal own
                del loss
                own += 1
                report(f"step {step}")
                if later_timeout is not None:
                    trainer._timeout = later_timeout
                if pause is not None and own == pause[1]:
                    if cluster.index == pause[0]:
                        report("paused")
                        os.kill(os.getpid(), signal.SIGSTOP)
                    else:
                        os.read(paused, 1)

            result = trainer.fit(data, steps, on_step)
            report(f"end {result.step}")  # the last step may have been reported by no worker
            losses = result.losses[-16:]
            report(f"loss {sum(losses) / len(losses) if losses else float('nan')}")
            report(f"own {result.own_steps}")
            if trainer._queues is not None:
                report(f"generation {trainer._queues.generation % GENERATIONS}")
            if cluster.is_chief:
                report(f"final {trainer.evaluate(data(ALL))['loss']}")
                weights = [w.tolist() for w in trainer.export().get_weights()]
                report("weights " + json.dumps(weights))
            trainer.finish()
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
    resume_after=None,
    replaced=False,
    later_timeout=None,
    network=False,
    faults=None,
    cuts=(),
    one_batch=False,
    limit=TIMEOUT,
    **options,
):
    """Trains in `servers` + `workers` processes until the workers have ended.

    Args:
        kills: (step of the run, job, index, milliseconds) of each process that is killed so long
            after a worker has reported that step.
        stops: The same for processes that become unreachable: all their threads are stopped, or,
            with `network`, the interface of their host is taken down.
        pause: (index, steps): this worker stops all its threads after that many steps of its own,
            and every other worker does as many steps before and the rest afterwards.
        resume_after: How many other processes have to die until stopped processes are resumed;
            None: they are resumed when the chief has ended.
        replaced: Whether another process takes the place of each worker that is stopped, at another
            address, as a scheduler does that has lost a host. The first is resumed when the other
            one has reported a step.
        later_timeout: The trainers' timeout after their first step, which takes longer than the
            others; None: the timeout does not change.
        network: Whether each process has its own host, that is, a network namespace.
        faults: With `network`, the `faulty_network.Faults` of packets; None: all arrive in order.
        cuts: (step of the run, job, index, packets) of each process whose host is cut off, until so
            many of its packets are lost. Needs `faults`.
        one_batch: Whether all steps have the same data, so that it does not matter where in the
            data a restarted process begins.
        limit: Seconds after which the run counts as one that hangs.

    Returns:
        A dictionary: "step"; "loss", "own" steps and "generation" of the queues by worker; the
        final "weights" and the "final" log loss on all data; "deaths", [job, index, status] each;
        "zombies", [index, status, steps that it reported after it was resumed] of each worker that
        was replaced; "resumed", the step at which stopped processes were resumed, and "reported",
        the steps that each worker had reported by then; "packets", what became of them; "hang" if
        the run had to be ended.
    """
    with hosts(servers + workers, faults) if network else contextlib.nullcontext() as net:
        data = (lambda context: batches(context)[:1]) if one_batch else batches
        data = id_batches_of_worker if options.get("rows_of_ids") else data
        supervisor = Supervisor(net, servers, workers, steps, data, options, later_timeout, pause)
        supervisor.replaced, supervisor.cuts = replaced, list(cuts)
        found = supervisor.supervise(list(kills), list(stops), resume_after, limit)
        return {**found, "packets": getattr(net, "counts", None)}


class Supervisor:
    """The processes of a run, by process id, and what they have reported."""

    def __init__(self, net, servers, workers, steps, data, options, later_timeout, pause):
        self.net, self.servers, self.workers = net, servers, workers
        self.steps, self.data, self.options = steps, data, options
        self.servers_in_workers = options.pop("servers_in_workers", False)
        self.later_timeout = later_timeout
        self.pause = pause
        self.paused, self.until_paused = os.pipe()
        self.ports = Ports(servers + 2 * workers)
        self.replaced, self.cuts = False, []
        self.substitutes = {}  # process -> the one whose place it has taken
        self.zombies = {}  # process that was replaced -> steps that it has reported afterwards
        names = ["127.0.0.1"] * (servers + workers)
        if net is not None:
            names = [net.address(h) for h in net.hosts]
        numbered = zip(names, self.ports.numbers[: servers + workers], strict=True)
        self.addresses = [f"{name}:{port}" for name, port in numbered]
        self.alive, self.pipes, self.stopped = {}, {}, []
        self.kill_at = None  # the time of the next kill, when its step has been reached
        self.kills, self.aimed = [], {}  # those to come; process -> the kill that was its own
        self.died_since = set()  # tasks that have died since others were stopped
        self.reported = {str(i): 0 for i in range(workers)}
        self.found = {
            "step": 0,
            "loss": {},
            "own": {},
            "generation": {},
            "weights": None,
            "final": None,
        }
        self.found["deaths"], self.found["zombies"] = [], []

    def start(self, job, index, port=None):
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(reading)
            if self.until_paused is not None:
                os.close(self.until_paused)
            if self.net is not None:
                enter(self.net, index if job == "ps" else self.servers + index)
            addresses = list(self.addresses)
            if port is not None:
                addresses[self.servers + index] = f"127.0.0.1:{port}"
            own = range(index, self.servers, self.workers) if self.servers_in_workers else ()
            cluster = Cluster(
                addresses[: self.servers], addresses[self.servers :], job, index, own_servers=own
            )
            run_task(cluster, self.data, self.steps, self.options, self.later_timeout, self.pause,
                 self.paused, lambda line: os.write(writing, f"{line}\n".encode()))  # fmt: skip
        os.close(writing)
        self.alive[pid], self.pipes[reading] = (job, index), [pid, b""]
        return pid

    def read(self, pipe):
        """Reads what a process has reported, and returns whether it has ended."""
        got = os.read(pipe, 1 << 16)
        pid, rest = self.pipes[pipe]
        *lines, self.pipes[pipe][1] = (rest + got).split(b"\n")
        for line in lines:
            self.note(pid, *line.decode().partition(" ")[::2])
        return not got

    def note(self, pid, kind, value):
        job, index = self.alive[pid]
        found = self.found
        if pid in self.zombies:
            self.zombies[pid] += kind == "step"
            return
        if kind == "step" and pid in self.substitutes:
            os.kill(self.substitutes.pop(pid), signal.SIGCONT)
        if kind in ("step", "end"):
            found["step"] = max(found["step"], int(value))
            self.reported[str(index)] += kind == "step"
        elif kind == "paused":
            os.waitpid(pid, os.WUNTRACED)  # until it has stopped
            os.close(self.until_paused)
            self.pause = self.until_paused = None
            self.stopped.append((job, index))
            self.died_since.clear()
        elif kind in ("weights", "final"):
            found[kind] = json.loads(value)
        else:
            found[kind][index] = float(value)

    def set_reachable(self, victims, reachable):
        """Makes processes unreachable, or reachable again."""
        for job, index in victims:
            if self.net is not None:
                host = self.host(job, index)
                state = "up" if reachable else "down"
                command = self.net.on(host, ["ip", "link", "set", "eth0", state])
                subprocess.run(command, check=True)
                continue
            self.signal((job, index), signal.SIGCONT if reachable else signal.SIGSTOP)

    def host(self, job, index):
        """The host of a process, with `network`."""
        return self.net.hosts[index if job == "ps" else self.servers + index]

    def signal(self, victim, number):
        pids = [p for p, t in self.alive.items() if t == victim and p not in self.zombies]
        for pid in pids:
            os.kill(pid, number)
        return pids

    def inject_faults(self, kills, stops, resume_after):
        """Injects the faults that are due at the step that the run has reached."""
        step = self.found["step"]
        if kills and step >= kills[0][0] and self.kill_at is None:
            self.kill_at = time.monotonic() + (kills[0][3] if len(kills[0]) > 3 else 0) / 1e3
        if self.kill_at is not None and time.monotonic() >= self.kill_at:
            kill = kills.pop(0)
            self.aimed |= dict.fromkeys(self.signal(tuple(kill[1:3]), signal.SIGKILL), kill)
            self.kill_at = None
        if stops and step >= stops[0][0]:
            _, *victim = stops.pop(0)
            self.set_reachable([tuple(victim)], False)
            self.stopped.append(tuple(victim))
            self.died_since.clear()
            if self.replaced:
                self.replace(*self.stopped.pop())
        if self.cuts and step >= self.cuts[0][0]:
            _, job, index, packets = self.cuts.pop(0)
            self.net.cut(self.host(job, index), packets)
        chief_done = ("worker", 0) not in self.alive.values()
        if self.stopped and (
            chief_done if resume_after is None else len(self.died_since) >= resume_after
        ):
            self.found["resumed"], self.found["reported"] = step, dict(self.reported)
            self.set_reachable(self.stopped, True)
            self.stopped.clear()

    def replace(self, job, index):
        """Starts another process of a worker that is stopped."""
        (pid,) = [p for p, task in self.alive.items() if task == (job, index)]
        os.waitpid(pid, os.WUNTRACED)  # until it has stopped
        self.zombies[pid] = 0
        other = self.start(job, index, self.ports.numbers[self.servers + self.workers + index])
        self.substitutes[other] = pid

    def restart(self, pipe):
        """Restarts a process that has ended without success, and returns whether it has failed."""
        pid, _ = self.pipes.pop(pipe)
        os.close(pipe)
        _, status = os.waitpid(pid, 0)
        job, index = self.alive.pop(pid)
        aimed = self.aimed.pop(pid, None)
        if pid in self.zombies:
            code = os.waitstatus_to_exitcode(status)
            self.found["zombies"].append([index, code, self.zombies.pop(pid)])
            return False
        if not status:
            return False
        if aimed is not None and status != signal.SIGKILL:
            self.kills.insert(0, aimed)  # it had ended before the kill: its successor is killed
        self.found["deaths"].append([job, index, status])
        self.died_since.add((job, index))
        if os.waitstatus_to_exitcode(status) == 1:
            return True
        self.start(job, index)
        return False

    def supervise(self, kills, stops, resume_after, limit):
        processes = 0 if self.servers_in_workers else self.servers
        for job, count in (("ps", processes), ("worker", self.workers)):
            for index in range(count):
                self.start(job, index)
        self.kills = kills
        deadline, failed = time.monotonic() + limit, False
        while not failed and any(job == "worker" for job, _ in self.alive.values()):
            until = deadline if self.kill_at is None else min(deadline, self.kill_at)
            remaining = max(0, until - time.monotonic())
            ready, _, _ = select.select(list(self.pipes), [], [], remaining)
            if not ready and time.monotonic() >= deadline:
                self.found["hang"] = sorted(self.alive.values())
                break
            for pipe in ready:
                if self.read(pipe):
                    failed |= self.restart(pipe)
            self.inject_faults(kills, stops, resume_after)
        for pid in self.alive:
            os.kill(pid, signal.SIGKILL)
        for pid in self.alive:
            os.waitpid(pid, 0)
        for pipe in (*self.pipes, self.paused, self.until_paused):
            if pipe is not None:
                os.close(pipe)
        self.ports.close()
        return self.found


@contextlib.contextmanager
def hosts(count, faults):
    """Creates `count` hosts with a network of their own."""
    from benchmarks.distributed.network import Network
    from tests.distribute.parameter_server.faulty_network import Faults, FaultyNetwork

    names = [f"h{i}" for i in range(count)]
    made = Network(names) if faults is None else FaultyNetwork(names, Faults(**faults))
    with made as network:
        yield network


def enter(network, i):
    """Moves this process to host `i`."""
    name = network.on(network.hosts[i], [])[-1]
    with open(f"/run/netns/{name}") as handle:
        if ctypes.CDLL(None, use_errno=True).setns(handle.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "setns")


def reply(scenario):
    """Returns the outcome of a run."""
    with tempfile.TemporaryDirectory() as folder:
        if scenario.pop("checkpoints", False):
            scenario["checkpoint_dir"] = folder
        return run(**scenario)


if __name__ == "__main__":
    serve_requests(reply)
