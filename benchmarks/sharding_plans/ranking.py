"""Whether the plans that are predicted to be faster are: many plans on hosts with limits."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
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
STEPS = 6  # of a plan in a round; the first one is not measured


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


def ways_of(plan: Sequence[ShardedTable]) -> dict[str, int]:
    """The number of tables that a plan divides in each way."""
    return {way: sum(t.way == way for t in plan) for way in DIVIDED}


def measure(
    job: dict[str, Any],
    planned: dict[str, tuple[ShardedTable, ...]],
    clusters: Sequence[ClusterResources],
    rounds: int,
) -> list[dict[str, Any]]:
    """Measures the seconds of a step of each plan on hosts with the limits of a cluster.

    All trainings exist at the same time, and each round makes some steps of each.

    Args:
        job: arguments of `power_law_job`.
        planned: the plans by name.
        clusters: the hosts, with several limits.
        rounds: number of rounds with each cluster.

    Returns:
        For each cluster and each plan `seconds`, the medians of its rounds, and `cpu`, the seconds
        of CPU time of a step of each server and of the worker.
    """
    with (
        Network(host_names(clusters[0].servers), cpu=True) as network,
        cluster_of(network, job) as processes,
    ):
        trainer = processes[-1]
        for name, plan in planned.items():
            places = [(t.way, t.first) for t in plan]
            trainer.request({"do": "build", "name": name, "places": places}, SECONDS)

        def run(name: str) -> tuple[float, list[float]]:
            before = network.cpu_seconds()
            found = trainer.request({"do": "run", "name": name, "steps": STEPS}, SECONDS)
            used = [(b - before[host]) / STEPS for host, b in network.cpu_seconds().items()]
            return statistics.median(found["seconds"]), used

        found = []
        for cluster in clusters:
            network.cap(cluster.egress)
            network.cap_cpu(cluster.cores)
            by_round = [{name: run(name) for name in planned} for _ in range(rounds)]
            found.append({
                name: {
                    "seconds": [of[name][0] for of in by_round],
                    "cpu": np.mean([of[name][1] for of in by_round], axis=0).tolist(),
                }
                for name in planned
            })  # fmt: skip
    return found


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
        measured: of this cluster in the result of `measure`.

    Returns:
        `egress` of the cluster; `correlation`, the rank correlation of Spearman; and for each plan
        of `plans` `predicted` and `measured`, seconds of a step, and `cpu`, seconds of each host.
    """
    made = power_law_job(**job)
    plans = {
        name: {
            "predicted": max(predict_plan(plan, made, cluster, costs).seconds),
            "measured": statistics.median(measured[name]["seconds"]),
            "cpu": measured[name]["cpu"],
        }
        for name, plan in planned.items()
    }
    pairs = [[plan["predicted"], plan["measured"]] for plan in plans.values()]
    correlation = float(stats.spearmanr(pairs).statistic)
    return {"egress": cluster.egress, "correlation": correlation, "plans": plans}


def table(result: dict[str, Any]) -> str:
    """The results as Markdown, in the order of the steps that were measured first."""
    header, rows = ["plan", *DIVIDED], []
    for each in result["by_egress"]:
        at = f"at {each['egress'] / 1e6:g} MB/s"
        header += [f"predicted {at}, ms", f"measured {at}, ms"]
    first = result["by_egress"][0]["plans"]
    for name in sorted(first, key=lambda name: first[name]["measured"]):
        found = [each["plans"][name] for each in result["by_egress"]]
        times = [f"{1e3 * each[key]:.0f}" for each in found for key in ("predicted", "measured")]
        rows.append([name, *map(str, result["ways"][name].values()), *times])
    correlations = " and ".join(f"{each['correlation']:.3f}" for each in result["by_egress"])
    of_worker = " and ".join(f"{_of_worker(each['plans']):.3f}" for each in result["by_egress"])
    job = result["job"]
    return (
        f"{tables.machine(result['about'])}\n\n{tables.markdown(header, rows)}\n\n"
        f"Rank correlation of predicted and measured steps {correlations}; of the worker's "
        f"measured CPU time and measured steps {of_worker}. {job['tables']} tables, "
        f"B = {job['batch']}; hosts of {result['cores']:g} cores; medians of "
        f"{result['rounds']} rounds."
    )


def _of_worker(plans: dict[str, Any]) -> float:
    """The rank correlation of the CPU time of the worker and the durations of steps."""
    pairs = [[plan["cpu"][-1], plan["measured"]] for plan in plans.values()]
    return float(stats.spearmanr(pairs).statistic)
