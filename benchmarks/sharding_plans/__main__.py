"""`python -m benchmarks.sharding_plans`: a plan of many tables beside one way for all tables.

Servers and a worker, each on a host of its own (a network namespace; needs root), train a model of
tables whose sizes and traffic follow power laws. All hosts share the cores of this machine, so that
the figures are seconds of CPU time and bytes, not the duration of a step. With `--rank` the hosts
have limits of CPU time and egress that this machine can grant all at once, and the durations of
the steps of many plans are compared with the predicted ones.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks import machine, tables
from benchmarks.distributed.network import Network, unavailable
from benchmarks.sharding_plans import ranking
from benchmarks.sharding_plans.cluster import SECONDS, cluster_of, host_names
from benchmarks.sharding_plans.generator import power_law_job
from twml_ops.cli.plan import read_costs
from twml_ops.planning import ClusterResources, ShardedTable, ShardingPlan, shard
from twml_ops.planning.sharding_plan import REPLICATED, TABLE, WAYS

BEST = "plan"
IN_TURN = "all by table, server after server"
EGRESS = 1.25e9  # bytes per second of a host, for the plans
DEFAULT_EGRESS = (100.0, 1000.0)
BY = "benchmarks/sharding_plans"


def main(
    count: Annotated[int, typer.Option("--tables", min=1, help="Tables.")] = 100,
    servers: Annotated[int, typer.Option(min=4, help="Servers, no prime number.")] = 4,
    batch: Annotated[int, typer.Option(min=1, help="Examples of a batch.")] = 256,
    most_rows: Annotated[int, typer.Option(min=1000, help="The most rows of a table.")] = 200_000,
    memory: Annotated[
        float, typer.Option(min=1, help="Memory of a server, in times the mean load.")
    ] = 1.1,
    seed: Annotated[int, typer.Option(help="Of the generator of tables.")] = 1,
    steps: Annotated[int, typer.Option(min=1, help="Measured steps of each plan.")] = 48,
    rank: Annotated[
        int, typer.Option(min=0, help="Compare so many plans with their predictions instead.")
    ] = 0,
    cores: Annotated[float, typer.Option(help="With --rank: cores of a host.")] = 0.25,
    egress: Annotated[
        list[float] | None,
        typer.Option(
            help="With --rank: MB/s that a host can send; repeat it. [default: 100, 1000]"
        ),
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="With --rank: rounds of all plans.")] = 5,
    costs: Annotated[
        Path | None,
        typer.Option(help="With --rank: file of `plan --out-costs`. [default: measure them]"),
    ] = None,
    docs: Annotated[Path | None, typer.Option(help="Folder of plan.md.")] = None,
) -> None:
    """Measures, and prints the table."""
    reason = unavailable(cpu=bool(rank))
    if reason is not None:
        raise SystemExit(f"benchmarks.sharding_plans: {reason}")
    about = machine.describe(machine.command_line("benchmarks.sharding_plans"))
    job = {"tables": count, "seed": seed, "batch": batch, "most_rows": most_rows}
    if rank:
        hosts = [
            ClusterResources(1e6 * rate, servers=servers, cores=cores)
            for rate in egress or DEFAULT_EGRESS
        ]
        found = rank_plans(job, hosts, memory, rank, rounds, costs)
        text = ranking.table({"about": about, **found})
        print(text)
        if docs is not None:
            file = tables.results_file(docs, "sharding_ranks.json")
            result = {"about": about, **found}
            tables.record(result, file, docs / "plan.md", {"sharding_ranks": text}, BY)
        return
    found = measure(job, plans(job, servers, memory), steps)
    result = {"about": about, "job": job, "memory": memory, "steps": steps, "plans": found}
    text = table(result)
    print(text)
    if docs is not None:
        files = tables.results_file(docs, "sharding_plans.json"), docs / "plan.md"
        tables.record(result, *files, {"sharding_plans": text}, BY)


def plans(job: dict[str, Any], servers: int, memory: float) -> dict[str, ShardingPlan]:
    """Whole tables in turn, and the best plans of each single way and of all ways.

    Args:
        job: arguments of `power_law_job`.
        servers: the number of servers.
        memory: of a server for the plan of all ways, in times the mean bytes of a server.
    """
    made, cluster = power_law_job(**job), ClusterResources(EGRESS, servers=servers)
    found = {f"all by {way}": shard(made, cluster, ways=[way]) for way in WAYS if way != REPLICATED}
    found[BEST] = shard(made, cluster, ways=WAYS, memory=memory * made.stored_bytes / servers)
    places = tuple(ShardedTable(TABLE, i % servers) for i in range(len(made.tables)))
    stored = [t.bytes * (1 + made.slots) for t in made.tables]
    by_server = tuple(float(sum(stored[i::servers])) for i in range(servers))
    return {IN_TURN: ShardingPlan(places, (math.nan,) * servers, by_server), **found}


def measure(
    job: dict[str, Any], planned: dict[str, ShardingPlan], steps: int
) -> dict[str, dict[str, Any]]:
    """Trains with each plan.

    Args:
        job: arguments of `power_law_job`.
        planned: the plans by name.
        steps: the measured steps of each plan.

    Returns:
        For each plan `predicted`, seconds of a step by server, or None; of a step `cpu`, seconds,
        and `sent`, bytes, of each server and then of the worker; `ways`, the number of tables by
        way;
        `stored`, bytes of tables and slots by server.
    """
    servers = len(planned[BEST].seconds)
    with Network(host_names(servers)) as network, cluster_of(network, job) as processes:
        trainer = processes[-1]

        def counters() -> list[float]:
            cpu = [p.request({"do": "cpu"}, SECONDS)["seconds"] for p in processes]
            return [*cpu, *network.sent().values()]

        of_step = {}
        for name, plan in planned.items():
            places = [(t.way, t.first) for t in plan.tables]
            trainer.request({"do": "build", "name": name, "places": places}, SECONDS)
            before = counters()
            trainer.request({"do": "run", "name": name, "steps": steps}, SECONDS)
            of_step[name] = [(b - a) / steps for a, b in zip(before, counters(), strict=True)]
            trainer.request({"do": "release", "name": name}, SECONDS)
    return {
        name: {
            "predicted": None if name == IN_TURN else list(plan.seconds),
            "cpu": of_step[name][: servers + 1],
            "sent": of_step[name][servers + 1 :],
            "stored": list(plan.bytes),
            "ways": {way: sum(t.way == way for t in plan.tables) for way in WAYS},
        }
        for name, plan in planned.items()
    }


def rank_plans(
    job: dict[str, Any],
    clusters: Sequence[ClusterResources],
    memory: float,
    count: int,
    rounds: int,
    costs_file: Path | None,
) -> dict[str, Any]:
    """Measures the plans of `plans` and random ones on hosts with limits.

    Args:
        job: arguments of `power_law_job`; its seed is the one of the random plans as well.
        clusters: the hosts, with several limits of egress.
        memory: see `plans`.
        count: the number of all plans.
        rounds: see `ranking.measure`.
        costs_file: costs of CPU time; None: they are measured first.

    Returns:
        The settings, the numbers of the ways, and the results of `ranking.compare`.
    """
    servers = clusters[0].servers
    planned = {name: plan.tables for name, plan in plans(job, servers, memory).items()}
    more = max(0, count - len(planned))
    planned.update(ranking.random_plans(job, servers, more, job["seed"]))
    if costs_file is not None:
        costs = read_costs(costs_file)
    else:
        from twml_ops.distribute.measure_costs import measure_costs

        costs = measure_costs(power_law_job(**job).slots, steps_per_execution=1)[0]
    measured = ranking.measure(job, planned, clusters, rounds)
    return {
        "job": job,
        "cores": clusters[0].cores,
        "rounds": rounds,
        "costs": costs.to_json(),
        "ways": {name: ranking.ways_of(plan) for name, plan in planned.items()},
        "by_egress": [
            ranking.compare(job, planned, cluster, costs, of_cluster)
            for cluster, of_cluster in zip(clusters, measured, strict=True)
        ],
    }


def table(result: dict[str, Any]) -> str:
    """The results as Markdown."""
    columns = ["slowest server, ms", "mean server, ms", "worker, ms", "predicted step, ms"]
    columns += ["most sent by a host, MB", "sent by all, MB", "fullest server, × the mean"]
    lines = [f"| tables | {' | '.join(columns)} |", "| --- |" + " ---: |" * len(columns)]
    for name, found in result["plans"].items():
        *cpu, worker = found["cpu"]
        numbers = [max(cpu), sum(cpu) / len(cpu), worker, max(found["predicted"] or [math.nan])]
        sent = max(found["sent"]), sum(found["sent"])
        cells = ["" if math.isnan(n) else f"{1e3 * n:.1f}" for n in numbers]
        cells += [f"{n / 1e6:.2f}" for n in sent]
        stored = found["stored"]
        cells.append(f"{max(stored) * len(stored) / sum(stored):.2f}")
        ways = ", ".join(f"{n} {way}" for way, n in found["ways"].items() if n)
        label = f"as planned: {ways}" if name == BEST else name
        lines.append(f"| {label} | {' | '.join(cells)} |")
    text = f"{tables.machine(result['about'])}\n\n" + "\n".join(lines)
    return f"{text}\n\nOf a step, the mean of {result['steps']} steps."


if __name__ == "__main__":
    typer.run(main)
