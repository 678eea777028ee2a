"""Whether the plans that are predicted to be faster are: many plans on hosts with limits."""

from __future__ import annotations

import statistics
from typing import Any

import numpy as np
from scipy import stats

from benchmarks import tables
from benchmarks.distributed.network import Network
from benchmarks.sharding_plans.cluster import SECONDS, cluster_of, host_names
from benchmarks.sharding_plans.generator import power_law_job
from twml_ops.planning import ClusterResources, CpuCosts, ShardedTable, predict_plan
from twml_ops.planning.sharding_plan import REPLICATED, WAYS

DIVIDED = tuple(way for way in WAYS if way != REPLICATED)
CONCENTRATION = 0.5  # of the Dirichlet distributions: plans from even to very uneven ones
STEPS = 9  # of a plan in a round; the first one is not measured


def random_plans(
    job: dict[str, Any], servers: int, count: int, seed: int
) -> dict[str, tuple[ShardedTable, ...]]:
    """Draws plans of which each prefers other ways and other servers.

    Args:
        job: arguments of `power_law_job`, whose tables can be divided in all ways.
        servers: the number of servers.
        count: the number of plans.
        seed: of the generator.
    """
    rng = np.random.default_rng(seed)
    found = {}
    for number in range(count):
        ways = rng.dirichlet(np.full(len(DIVIDED), CONCENTRATION))
        hosts = rng.dirichlet(np.full(servers, CONCENTRATION))
        found[f"random {number + 1}"] = tuple(
            ShardedTable(str(rng.choice(DIVIDED, p=ways)), int(rng.choice(servers, p=hosts)))
            for _ in range(job["tables"])
        )
    return found


def measure(
    job: dict[str, Any],
    planned: dict[str, tuple[ShardedTable, ...]],
    cluster: ClusterResources,
    rounds: int,
) -> dict[str, Any]:
    """Measures the seconds of a step of each plan on hosts with the limits of `cluster`.

    All trainings exist at the same time, and each round makes some steps of each.

    Args:
        job: arguments of `power_law_job`.
        planned: the plans by name.
        cluster: the hosts.
        rounds: number of rounds.

    Returns:
        For each plan `seconds`, the medians of its rounds, and `cpu`, the seconds of CPU time of a
        step of each server and of the worker.
    """
    seconds: dict[str, list[float]] = {name: [] for name in planned}
    cpu = {name: np.zeros(cluster.servers + 1) for name in planned}

    def used() -> np.ndarray:
        return np.array(list(network.cpu_seconds().values()))

    with (
        Network(host_names(cluster.servers), cpu=True) as network,
        cluster_of(network, job) as processes,
    ):
        trainer = processes[-1]
        for name, plan in planned.items():
            places = [(t.way, t.first) for t in plan]
            trainer.request({"do": "build", "name": name, "places": places}, SECONDS)
        network.cap(cluster.egress)
        network.cap_cpu(cluster.cores)
        for _ in range(rounds):
            for name in planned:
                before = used()
                found = trainer.request({"do": "run", "name": name, "steps": STEPS}, SECONDS)
                seconds[name].append(statistics.median(found["seconds"]))
                cpu[name] += (used() - before) / (STEPS * rounds)
    return {name: {"seconds": seconds[name], "cpu": cpu[name].tolist()} for name in planned}


def compare(
    job: dict[str, Any],
    planned: dict[str, tuple[ShardedTable, ...]],
    cluster: ClusterResources,
    costs: CpuCosts,
    measured: dict[str, Any],
) -> dict[str, Any]:
    """The predictions beside the measurements.

    Args:
        job: arguments of `power_law_job`.
        planned: the plans by name.
        cluster: the hosts.
        costs: of this machine.
        measured: the result of `measure`.

    Returns:
        `correlation`, the rank correlation of Spearman, and for each plan of `plans` its `ways`,
        and `predicted` and `measured`, seconds of a step, and `cpu`, seconds of each host.
    """
    made = power_law_job(**job)
    plans = {
        name: {
            "ways": {way: sum(t.way == way for t in plan) for way in DIVIDED},
            "predicted": max(predict_plan(plan, made, cluster, costs).seconds),
            "measured": statistics.median(measured[name]["seconds"]),
            "cpu": measured[name]["cpu"],
        }
        for name, plan in planned.items()
    }
    pairs = [[plan["predicted"], plan["measured"]] for plan in plans.values()]
    return {"correlation": float(stats.spearmanr(pairs).statistic), "plans": plans}


def table(result: dict[str, Any]) -> str:
    """The results as Markdown, in the order of the measured steps."""
    columns = ["predicted, ms", "measured, ms", "slowest server, CPU ms", "worker, CPU ms"]
    header = ["plan", *DIVIDED, *columns]
    rows = []
    for name, plan in sorted(result["plans"].items(), key=lambda of: of[1]["measured"]):
        *servers, worker = plan["cpu"]
        numbers = [plan["predicted"], plan["measured"], max(servers), worker]
        rows.append([name, *map(str, plan["ways"].values()), *(f"{1e3 * n:.1f}" for n in numbers)])
    hosts = result["cluster"]
    return (
        f"{tables.machine(result['about'])}\n\n{tables.markdown(header, rows)}\n\n"
        f"Rank correlation {result['correlation']:.3f}. {result['job']['tables']} tables of seed "
        f"{result['job']['seed']}, B = {result['job']['batch']}; hosts of {hosts['cores']:g} cores "
        f"that send {hosts['egress'] / 1e6:g} MB/s; medians of {hosts['rounds']} rounds."
    )
