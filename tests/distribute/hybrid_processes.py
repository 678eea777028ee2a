"""A cluster of real processes, forked off one that has imported everything, and supervised.

`python hybrid_processes.py JSON`: prints JSON, what became of it; see `run`. What a server or
worker that dies is: started anew, as `twml-ops launch` or Kubernetes would.
"""

import json
import os
import signal
import sys
import tempfile
import time
import traceback

from hybrid_model import batches, builder

from twml_ops import optimizers
from twml_ops.distribute import Cluster, HybridTrainer, exit_if_lost, serve
from twml_ops.distribute.launch import free_ports

LIMIT = 240  # seconds, of which only a hang makes use


def task(cluster, job, steps, options, slow, report):
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

            result = trainer.fit(batches, steps, on_step)
            report(f"step {result.step}")  # its last step may be another's, who died unheard
            losses = result.losses[-16:]
            report(f"loss {sum(losses) / len(losses)}")
            report(f"own {result.own_steps}")
            if cluster.is_chief:
                weights = [w.tolist() for w in trainer.export().get_weights()]
                report("weights " + json.dumps(weights))
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def run(servers, workers, steps, kills=(), slow=0.0, **options):
    """Trains in `servers` + `workers` processes until the workers are done.

    Args:
        kills: (step of the run, job, index): killed once a worker has reported that step.
        slow: seconds that each step of all workers but the chief takes longer.

    Returns:
        step, losses and own steps by worker, the weights, deaths by task, or "hang".
    """
    addresses = [f"127.0.0.1:{port}" for port in free_ports(servers + workers)]
    alive, pipes, deaths, kills = {}, {}, [], list(kills)
    found = {"step": 0, "loss": {}, "own": {}, "weights": None, "deaths": deaths}
    start = time.monotonic()

    def begin(job, index):
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(reading)
            cluster = Cluster(addresses[:servers], addresses[servers:], job, index)
            own_slow = slow if job == "worker" else 0
            task(cluster, job, steps, options, own_slow,
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
            elif kind == "weights":
                found["weights"] = json.loads(value)
            else:
                found[kind][alive[pid][1]] = float(value)

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
    return found


if __name__ == "__main__":
    results = {}
    for name, what in json.loads(sys.argv[1]).items():
        with tempfile.TemporaryDirectory() as folder:
            if what.pop("checkpoints", False):
                what["checkpoint_dir"] = folder
            results[name] = run(**what)
    print(json.dumps(results))
