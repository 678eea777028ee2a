"""What `twml-ops plan` has found."""

from __future__ import annotations

from dataclasses import dataclass

from twml_ops.planning import Choice, ClusterResources, Compute, Job, Prediction


@dataclass(frozen=True)
class Plan:
    """The predictions for a job and the recommendation.

    Attributes:
        job: the job, with the recommended batch size.
        cluster: the cluster.
        compute: measured times and costs.
        predictions: the prediction for each strategy.
        choice: the recommended axis and servers.
        examples_per_second_by_batch: the speed of the best choice for each batch size.
        hosts_to_break_even: number of hosts from which a cluster is faster than one host; None: no
            number is, or the speed of one host is not known.
    """

    job: Job
    cluster: ClusterResources
    compute: Compute
    predictions: list[Prediction]
    choice: Choice
    examples_per_second_by_batch: dict[int, float]
    hosts_to_break_even: int | None
