"""Log loss on validation data with and without averaged weights: docs/train.md.

    python -m benchmarks.average_weights flights criteo:PATH

Every training has the same initial weights, order of the examples and constant learning rate. After
each epoch the loss on the validation part of the training data is computed: of the weights as they
are, of the average that `twml-ops train` takes (eight snapshots of the second half of an epoch,
from which the next epoch goes on), and of exponential averages over all steps (`use_ema`).
"""

from __future__ import annotations

from typing import Annotated, Any

import tensorflow as tf
import typer

from benchmarks import machine
from twml_ops import _keras, models
from twml_ops.data import split_for_validation
from twml_ops.optimizers import averaged_weights
from twml_ops.training.callbacks import WeightAveraging
from twml_ops.training.model import learning_rate_of, make_optimizer
from twml_ops.training.sources import open_pair

OPTIMIZER, BATCH_SIZE, READ_BATCH_SIZE = "adagrad", 256, 8192
MOMENTA = (0.99, 0.997, 0.999)


class Losses(tf.keras.callbacks.Callback):
    """The loss on a data set after each epoch, with and without the averages of the optimizer."""

    def __init__(self, data: Any) -> None:
        super().__init__()
        self._data = data
        self.plain: list[float] = []
        self.averaged: list[float] = []

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Computes both losses."""
        self.plain.append(self.model.evaluate(self._data, verbose=0))
        if self.model.optimizer.use_ema:
            with averaged_weights(self.model):
                self.averaged.append(self.model.evaluate(self._data, verbose=0))


def losses(source: str, model: str, epochs: int, seed: int) -> dict[str, list[float]]:
    """The loss after each epoch, for each kind of average."""
    train, _ = open_pair(source, None)
    training, validation = split_for_validation(train)[:2]
    layout = models.layout_of(models.get(model))
    options = {"trees": False} if model == "dcn" else {}
    rate = learning_rate_of(OPTIMIZER, model)
    steps = -(-training.num_examples() // BATCH_SIZE)
    held_out = validation.dataset(READ_BATCH_SIZE, layout=layout)
    found: dict[str, list[float]] = {}
    for momentum in (None, *MOMENTA):
        tf.keras.utils.set_random_seed(seed)
        _keras.keep_random_state_in_variables()
        data = training.dataset(READ_BATCH_SIZE, layout=layout)
        made = models.get(model)(training.schema, data, **options)
        averages = {} if momentum is None else {"use_ema": True, "ema_momentum": momentum}
        made.compile(
            make_optimizer(OPTIMIZER, rate, **averages),
            "binary_crossentropy",
            steps_per_execution=16,
            jit_compile=False,
        )
        batches = training.dataset(BATCH_SIZE, shuffle=True, seed=seed, layout=layout)
        recorded = Losses(held_out)
        snapshots = [WeightAveraging(steps)] if momentum is None else []
        made.fit(batches, epochs=epochs, shuffle=False, verbose=0, callbacks=[*snapshots, recorded])
        if momentum is None:
            found["snapshots"] = recorded.plain
        else:
            found["none"] = recorded.plain
            found[f"use_ema, momentum {momentum}"] = recorded.averaged
    return found


def main(
    sources: Annotated[list[str], typer.Argument(help="As of `twml-ops train --data`.")],
    model: Annotated[str, typer.Option(help="Name of the model.")] = "sparse_mlp",
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the data.")] = 3,
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds.")] = 1,
) -> None:
    """Prints the mean log loss over the seeds after each epoch."""
    for source in sources:
        runs = [losses(source, model, epochs, seed) for seed in range(seeds)]
        for name in sorted(runs[0]):
            means = [sum(run[name][e] for run in runs) / seeds for e in range(epochs)]
            print(f"{source} {model} {name:<24}", *(f"{m:.4f}" for m in means), flush=True)
    print(machine.describe("python -m benchmarks.average_weights"))


if __name__ == "__main__":
    typer.run(main)
