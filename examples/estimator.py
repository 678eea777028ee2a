"""A complete tf.estimator pipeline (TensorFlow 2.15) on LIBSVM data.

    python examples/estimator.py libsvm:a9a --eval libsvm:a9a.t --out out/estimator

It trains with early stopping, evaluates with metrics of twml_ops, starts a second run from the
table of the first one, exports for raw features and for tf.Example, and scores an example with the
export.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tensorflow as tf

from twml_ops import estimator, layers, metrics, optimizers
from twml_ops.data import open_source

IDS, VALUES = "sparse_ids", "sparse_values"


def model_builder(dim: int, units: int) -> Callable[[], Any]:
    """A model function: max-normalized features, one sparse linear layer and a small dense net."""

    def build() -> Any:
        norm = layers.MaxNorm(dim, name="norm")
        linear = layers.SparseLinear(units, dim, activation="relu", name="linear")
        hidden = tf.keras.layers.Dense(8, activation="relu", name=f"hidden_{units}")
        output = tf.keras.layers.Dense(1, activation="sigmoid", name="output")

        def call(features: dict[str, Any], training: bool) -> tf.Tensor:
            batch = norm((features[IDS], features[VALUES]), training=training)
            return output(hidden(linear(batch)))

        return call

    return build


def make_estimator(dim: int, units: int, folder: Path, **warm: Any) -> Any:
    """An estimator with LazyAdam. `warm` are warm-start arguments of `estimator.make_model_fn`."""
    model_fn = estimator.make_model_fn(
        model_builder(dim, units),
        optimizers.LazyAdam(0.005),
        lambda: [metrics.NormalizedEntropy(), tf.keras.metrics.AUC(name="auc")],
        **warm,
    )
    config = tf.estimator.RunConfig(
        tf_random_seed=1, save_checkpoints_steps=50, keep_checkpoint_max=2, save_summary_steps=50
    )
    return tf.estimator.Estimator(model_fn, str(folder), config)


def run(data: str, held_out: str, out: Path, max_steps: int = 1000, patience: int = 100) -> dict:
    """Trains, evaluates, warm-starts and exports.

    Args:
        data: SOURCE of the training data.
        held_out: SOURCE of the evaluation data.
        out: folder of the checkpoints and exports.
        max_steps: steps to train at most.
        patience: steps without a lower loss after which training stops.

    Returns:
        Metrics, estimators, paths of the exports and some predictions, by name.
    """
    train = open_source(data)
    test = open_source(held_out, like=train.schema)
    dim = train.schema.sparse_dim

    def input_fn() -> tf.data.Dataset:
        return train.dataset(64, shuffle=True, seed=1).repeat()

    first = make_estimator(dim, 16, out / "first")
    stop = tf.estimator.experimental.stop_if_no_decrease_hook(
        first, "loss", max_steps_without_decrease=patience, run_every_secs=None, run_every_steps=50
    )
    specs = {
        IDS: tf.RaggedTensorSpec([None, None], tf.int64),
        VALUES: tf.RaggedTensorSpec([None, None], tf.float32),
    }
    parsing = {IDS: tf.io.RaggedFeature(tf.int64), VALUES: tf.io.RaggedFeature(tf.float32)}
    evaluated, _ = tf.estimator.train_and_evaluate(
        first,
        tf.estimator.TrainSpec(input_fn, max_steps=max_steps, hooks=[stop]),
        tf.estimator.EvalSpec(
            lambda: test.dataset(512), steps=None, start_delay_secs=0, throttle_secs=0
        ),
    )
    # A second run, which starts from the table and the maxima of the first one.
    second = make_estimator(
        dim,
        16,
        out / "second",
        warm_start_from=first.model_dir,
        warm_start_scopes={"linear": "linear", "norm": "norm"},
    )
    second.train(input_fn, steps=1)
    exports = {
        "raw": first.export_saved_model(str(out / "raw"), estimator.raw_receiver(specs)),
        "example": first.export_saved_model(
            str(out / "example"), estimator.example_receiver(parsing)
        ),
    }
    return {
        "metrics": {k: float(v) for k, v in evaluated.items()},
        "estimators": (first, second),
        "exports": {k: v.decode() for k, v in exports.items()},
        "predictions": [
            p["probability"][0] for p in first.predict(lambda: test.dataset(512).take(1))
        ],
    }


def example_of(ids: list[int], values: list[float]) -> bytes:
    """One row as a serialized tf.Example."""
    feature = {
        IDS: tf.train.Feature(int64_list=tf.train.Int64List(value=ids)),
        VALUES: tf.train.Feature(float_list=tf.train.FloatList(value=values)),
    }
    return tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString()


def main() -> None:
    """Runs the pipeline from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data")
    parser.add_argument("--eval", required=True)
    parser.add_argument("--out", type=Path, default=Path("out/estimator"))
    arguments = parser.parse_args()
    result = run(arguments.data, arguments.eval, arguments.out)
    print(result["metrics"])
    model = tf.saved_model.load(result["exports"]["example"])
    scored = model.signatures["serving_default"](tf.constant([example_of([3, 9], [1.0, 1.0])]))
    print(scored["probability"].numpy())


if __name__ == "__main__":
    main()
