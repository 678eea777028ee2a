"""The effect of buckets: `sparse_mlp` on the same numbers without and with quantile buckets.

python -m benchmarks.numeric_features criteo:PATH    # the last fifth of the rows is held out
"""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.table import Table
from sklearn.metrics import log_loss, roc_auc_score

from twml_ops import data

EPOCHS, BATCH_SIZE = 4, 256


def predict_with_and_without_buckets(
    train: data.Source, held_out: data.Source, seeds: int
) -> dict[str, Any]:
    """Trains the same model without and with buckets, from the same seeds.

    The first `sparse_mlp` sees numbers as sign(x) log(1 + |x|), scaled to [-1, 1] by `MaxNorm`. The
    second also sees 20 quantile buckets per feature.

    Returns:
        name of the variant -> the predictions of each seed.
    """
    import tensorflow as tf

    from twml_ops import models
    from twml_ops.training.model import learning_rate_of, make_optimizer

    def logs(features: dict[str, Any], labels: Any) -> tuple[dict[str, Any], Any]:
        values = features["continuous_values"]
        flat = tf.sign(values.flat_values) * tf.math.log1p(tf.abs(values.flat_values))
        return {**features, "continuous_values": values.with_flat_values(flat)}, labels

    def predictions(discretize: bool, seed: int) -> Any:
        tf.keras.utils.set_random_seed(seed)
        whole = train.dataset(8192).map(logs)
        model = models.sparse_mlp(train.schema, whole, discretize=discretize)
        steps = EPOCHS * -(-train.num_examples() // BATCH_SIZE)
        rate = learning_rate_of("adagrad")
        model.compile(
            make_optimizer("adagrad", rate, steps),
            "binary_crossentropy",
            steps_per_execution=16,
            jit_compile=False,
        )
        batches = train.dataset(BATCH_SIZE, shuffle=True, seed=seed).map(logs)
        model.fit(batches, epochs=EPOCHS, shuffle=False, verbose=0)
        return np.concatenate(
            [np.ravel(model(x, training=False)) for x, _ in held_out.dataset(8192).map(logs)]
        )

    names = {"logarithms of the numbers": False, "buckets beside them": True}
    return {
        name: [predictions(discretize, seed) for seed in range(seeds)]
        for name, discretize in names.items()
    }


def main(
    source: str,
    seeds: Annotated[int, typer.Option(min=1, help="Training runs of each variant.")] = 3,
) -> None:
    """Prints AUC, log loss and RCE of both variants: means over the seeds."""
    train, held_out = data.open_source(source).split()
    labels = np.concatenate([np.ravel(y) for _, y in held_out.dataset(8192)])
    rows = f"{train.num_examples():,} / {held_out.num_examples():,} rows, {seeds} seeds"
    table = Table("sparse_mlp on", "AUC", "log loss", "RCE", title=f"{source}: {rows}")
    base = log_loss(labels, np.full(len(labels), labels.mean()))
    for name, predicted in predict_with_and_without_buckets(train, held_out, seeds).items():
        loss = np.mean([log_loss(labels, p) for p in predicted])
        auc = np.mean([roc_auc_score(labels, p) for p in predicted])
        table.add_row(name, f"{auc:.4f}", f"{loss:.4f}", f"{100 * (1 - loss / base):.2f}")
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)
