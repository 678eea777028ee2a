"""`python -m benchmarks.exchange_losses`: the loss of training with an exchange every k steps.

One worker trains `sparse_mlp` on the flights of `twml-ops train`, for one epoch, with tables in its
own process: `HybridTrainer(exchange_every=k)` computes the same numbers there as with servers.
"""

from __future__ import annotations

import dataclasses
import statistics
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks import machine, tables
from benchmarks.quality.page import Runs, difference_text
from twml_ops import models
from twml_ops.analysis import scoring
from twml_ops.distribute import Cluster, HybridTrainer
from twml_ops.models import sparse_mlp
from twml_ops.training.config import RunConfig
from twml_ops.training.model import learning_rate_of, make_optimizer, model_maker
from twml_ops.training.sources import open_pair

EVALUATION_BATCH = 4096
METRIC = "log_loss"
TOGETHER = 8  # steps_per_execution, which every k divides


def main(
    every: Annotated[list[int], typer.Option(help="Steps between two exchanges.")] = [1, 4, 8],  # noqa: B006
    seeds: Annotated[int, typer.Option(min=1, help="Paired runs.")] = 5,
    docs: Annotated[Path | None, typer.Option(help="Folder of parameter_server.md.")] = None,
) -> None:
    """Prints the table."""
    about = machine.describe(machine.command_line("benchmarks.exchange_losses"))
    found = {
        k: {
            str(seed): {
                METRIC: loss("flights", seed, exchange_every=k, steps_per_execution=TOGETHER)
            }
            for seed in range(seeds)
        }
        for k in every
    }
    rows = [
        [str(k), mean(runs), difference_text(runs, found[every[0]], METRIC)]
        for k, runs in found.items()
    ]
    header = ["k", "log loss, held-out examples", f"− that of k = {every[0]}, 95 % interval"]
    text = f"{tables.machine(about)}\n\n{tables.markdown(header, rows)}\n\n{seeds} seeds."
    print(text)
    if docs is not None:
        files = tables.results_file(docs, "exchange_losses.json"), docs / "parameter_server.md"
        result = {"about": about, "losses": found}
        tables.record(result, *files, {"exchange_losses": text}, "benchmarks/exchange_losses.py")


def mean(runs: Runs) -> str:
    """The mean log loss of runs, as text."""
    return f"{statistics.mean(run[METRIC] for run in runs.values()):.5f}"


def loss(data: str, seed: int, **options: Any) -> float:
    """The log loss on held-out examples after one epoch.

    Args:
        data: SOURCE of the examples, as of `twml-ops train --data`.
        seed: the seed of the weights and of the order of the examples.
        options: of the trainer.
    """
    config = dataclasses.replace(RunConfig(data, model="sparse_mlp"), seed=seed)
    source, held_out = open_pair(config.data, None)
    layout = models.layout_of(sparse_mlp)
    steps = -(-source.num_examples() // config.fixed_batch_size)
    rate = learning_rate_of(config.optimizer, config.model)
    trainer = HybridTrainer(
        lambda: model_maker(config)(source),
        make_optimizer(config.optimizer, rate, steps),
        "binary_crossentropy",
        cluster=Cluster(),
        mode="async",
        **options,
    )
    trainer.fit(
        lambda _: source.dataset(config.fixed_batch_size, shuffle=True, seed=seed, layout=layout),
        steps,
    )
    scores = scoring.score(trainer.export(), held_out.dataset(EVALUATION_BATCH, layout=layout))
    return scoring.metrics(scores)["log_loss"]


if __name__ == "__main__":
    typer.run(main)
