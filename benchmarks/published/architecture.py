"""Differentiable search of an architecture beside random search of equal CPU time."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import numpy as np

from benchmarks.published.task import (
    READ_BATCH_SIZE,
    BestEpoch,
    Done,
    Measured,
    Metrics,
    Settings,
    Task,
    fit,
    log_loss,
    normalized_entropy,
    predict,
)
from benchmarks.quality.cpu_time import cpu_seconds
from twml_ops import models, optimizers
from twml_ops.data import split_for_validation
from twml_ops.research import architecture_search as search

CLAIM = (
    "Krishna et al. 2021 search the layers and tables of a DLRM differentiably. The bar is ours: "
    "better than random search of equal budget, and at most half of the FLOPs of the largest "
    "network within 0.1 % of its normalized entropy."
)
FACTOR = 0.001
"""Log loss that all FLOPs of the largest network may cost: the bar of docs/published.md allows 0.1
% of normalized entropy, about 0.0005 of log loss, for half of them."""
SEARCHED, TRAINED = 0.2, 0.5
"""Shares of the training data, random rows, of the search and of the final training."""
HELD_OUT = 0.2
"""Share of the rows of the search by which it judges networks."""
PASSES = search.Settings(costs={"flops": FACTOR}, warm_up=1, epochs=2)
LARGEST, RANDOM, FOUND = "largest network", "random search", "differentiable search"
DATA = ("flights", "criteo")
COMPARISONS = ((FOUND, RANDOM, "objective"), (FOUND, LARGEST, "entropy"))
_RATE = 0.002


def make_space() -> search.SearchSpace:
    """The space: widths, rows, interactions, widths and number of dense layers."""
    return search.SearchSpace(
        field_units=(1, 2, 4, 8),
        max_rows=(16, 64, 256, 4096),
        interactions=("dot", "cross", "attention"),
        dense=[
            search.DenseWidth("hidden_0", (16, 32, 64, 128)),
            search.DenseWidth("hidden_1", (0, 16, 32, 64)),
        ],
    )


class _Chosen(NamedTuple):
    architecture: dict[str, Any]
    metrics: Metrics


def measure(task: Task, seed: int, settings: Settings, done: Done) -> Measured:
    """Searches both ways, and trains what is found and the largest network from the start.

    Random search draws networks with equal probabilities of all candidates, trains each for a pass
    over the rows on which the other search trains its weights, and judges them by the log loss on
    the others plus `FACTOR` × the share of FLOPs. It goes on until it has used the CPU time of the
    other search.

    Args:
        task: the data.
        seed: the seed of the rows, the weights and the draws.
        settings: of every final training; the validation part chooses the number of epochs.
        done: contenders that are measured.

    Yields:
        The contender, and its `entropy` on the test part, its share of the `flops` and
        `parameter_bytes` of the largest network, its `objective` (log loss there + `FACTOR` × share
        of FLOPs), the `search_cpu` seconds and the number of `trials`.
    """
    if all(name in done for name in (LARGEST, RANDOM, FOUND)):
        return
    space, build = make_space(), models.get("dhen")
    rows = split_for_validation(task.train, "random", SEARCHED, seed).validation
    parts = split_for_validation(rows, "random", HELD_OUT, seed)
    part = dataclasses.replace(task, train=parts.fit, validation=parts.validation)
    final = split_for_validation(task.train, "random", TRAINED, seed + 1000).validation
    whole = dataclasses.replace(task, train=final)
    schema = task.train.schema
    net = search.Supernet(space, schema, part.batches(part.train, build, READ_BATCH_SIZE))
    largest = net.cost("flops", space.largest(schema))
    largest_bytes = net.cost("bytes", space.largest(schema))

    def share(architecture: dict[str, Any]) -> float:
        return net.cost("flops", architecture) / largest

    def make(on: Task, architecture: dict[str, Any]) -> Any:
        batches = on.batches(on.train, build, READ_BATCH_SIZE)
        return space.model(schema, batches, architecture)

    found = _search(space, part, build, settings, seed)
    chosen = {LARGEST: _Chosen(space.largest(schema), {})}
    chosen[FOUND] = found
    rng, tried, start = np.random.default_rng(seed), [], cpu_seconds()
    while cpu_seconds() - start < found.metrics["search_cpu"]:
        architecture = space.draw(space.uniform(schema), rng)
        model = make(part, architecture)
        once = settings._replace(epochs=1)
        fit(model, part, build, optimizers.LazyAdam(_RATE), once, seed)
        labels, predicted = predict(model, part.batches(part.validation, build, READ_BATCH_SIZE))
        objective = log_loss(labels, predicted) + FACTOR * share(architecture)
        tried.append((objective, architecture))
    used = {"search_cpu": cpu_seconds() - start, "trials": float(len(tried))}
    chosen[RANDOM] = _Chosen(min(tried, key=lambda each: each[0])[1], used)
    for name, (architecture, metrics) in chosen.items():
        if name in done:
            continue
        model = make(whole, architecture)
        best = BestEpoch(whole, build)
        fit(model, whole, build, optimizers.LazyAdam(_RATE), settings, seed, [best])
        labels, predicted = predict(model, task.batches(task.test, build, READ_BATCH_SIZE))
        yield (
            name,
            {
                "entropy": normalized_entropy(labels, predicted),
                "flops": share(architecture),
                "parameter_bytes": net.cost("bytes", architecture) / largest_bytes,
                "objective": log_loss(labels, predicted) + FACTOR * share(architecture),
                **metrics,
            },
        )


def _search(
    space: search.SearchSpace, part: Task, build: Any, settings: Settings, seed: int
) -> _Chosen:
    start = cpu_seconds()
    found = search.search(
        space,
        part.train.schema,
        part.batches(part.train, build, settings.batch_size, seed),
        part.batches(part.validation, build, settings.batch_size, seed),
        dataclasses.replace(PASSES, seed=seed),
    )
    return _Chosen(found.architecture, {"search_cpu": cpu_seconds() - start})
