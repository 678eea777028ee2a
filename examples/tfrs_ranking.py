"""Ranking with TensorFlow Recommenders: layers of twml_ops in a `tfrs.Model` with a ranking task.

    TF_USE_LEGACY_KERAS=1 python examples/tfrs_ranking.py --data flights

`GroupedSparseLinear` maps the buckets of the numbers to one vector and the hashed categories to
another. A stack of `Cross` layers (DCN-v2) and a dense net follow. The trained model is exported as
a SavedModel of stock TensorFlow ops, which any server can load.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import tensorflow as tf
import tensorflow_recommenders as tfrs

from twml_ops import export, layers, metrics, optimizers
from twml_ops.data import open_source
from twml_ops.models import HashedIds

INPUTS = {"continuous_ids": tf.int64, "continuous_values": tf.float32, "categorical_ids": tf.int64}


def numbers_of(features: dict[str, Any]) -> tuple[Any, Any]:
    """The continuous features of a batch: ragged (ids, values)."""
    return features["continuous_ids"], features["continuous_values"]


class LateFlights(tfrs.Model):
    """The probability that a flight is late.

    Args:
        train: batches of (features, labels) on which the buckets are adapted.
        width: width of the vector of each group of features.
        bits: categories are hashed into 2^bits ids.
    """

    def __init__(self, train: tf.data.Dataset, width: int = 32, bits: int = 18) -> None:
        super().__init__()
        self.buckets = layers.PercentileDiscretizer(20, unknown="drop")
        self.buckets.adapt(train.map(lambda features, _: numbers_of(features)))
        self.hashed = HashedIds(bits)
        tables = {"numbers": self.buckets.output_dim, "categories": 1 << bits}
        start = tf.keras.initializers.RandomNormal
        self.fields = layers.GroupedSparseLinear(
            {
                name: layers.SparseTable(size, width, start(stddev=0.05))
                for name, size in tables.items()
            }
        )
        self.crosses = [layers.Cross(rank=width // 4) for _ in range(2)]
        self.top = tf.keras.Sequential(
            [tf.keras.layers.Dense(32, "relu"), tf.keras.layers.Dense(1, "sigmoid")]
        )
        self.task = tfrs.tasks.Ranking(
            loss=tf.keras.losses.BinaryCrossentropy(),
            metrics=[metrics.NormalizedEntropy(), metrics.ROCAUC(name="auc")],
        )

    def call(self, features: dict[str, Any], training: bool = False) -> tf.Tensor:
        """Ragged features, as `Source.dataset` returns them → probabilities [B, 1]."""
        del training
        vectors = self.fields(
            {
                "numbers": self.buckets(numbers_of(features)),
                "categories": self.hashed(features["categorical_ids"]),
            }
        )
        x0 = x = tf.concat(list(vectors.values()), axis=1)
        for cross in self.crosses:
            x = cross(x0, x)
        return self.top(x)

    def compute_loss(self, inputs: Any, training: bool = False) -> tf.Tensor:
        """The loss of a batch of (features, labels), as `tfrs.Model` requires it."""
        features, labels = inputs
        return self.task(labels=labels, predictions=self(features, training=training))


def run(data: str, out: Path, epochs: int = 2, batch_size: int = 512) -> dict[str, float]:
    """Trains, evaluates and exports.

    Returns:
        The metrics on the held-out part of the data, by name.
    """
    tf.keras.utils.set_random_seed(1)
    train, test = open_source(data).split()
    batches = train.dataset(batch_size, shuffle=True, seed=1)
    model = LateFlights(batches)
    model.compile(optimizers.Adagrad(0.05))
    model.fit(batches, epochs=epochs, verbose=2)
    result = model.evaluate(test.dataset(4096), return_dict=True, verbose=0)
    specs = {n: tf.RaggedTensorSpec([None, None], dtype) for n, dtype in INPUTS.items()}
    export.to_stock_tf(model, out, inputs=specs, output_names=["late"])
    return result


def main() -> None:
    """Runs the example from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", default="flights")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("out/tfrs_ranking"))
    arguments = parser.parse_args()
    print(run(arguments.data, arguments.out, arguments.epochs))


if __name__ == "__main__":
    main()
