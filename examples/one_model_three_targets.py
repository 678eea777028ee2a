"""Trains the same model on one CPU, on mirrored replicas, and as the host of a TPU does.

    cd examples
    python one_model_three_targets.py --target cpu      --out cpu.npz
    python one_model_three_targets.py --target mirrored --out mirrored.npz --compare cpu.npz
    python one_model_three_targets.py --target tpu-host --out tpu.npz      --compare cpu.npz

All targets start from the same weights and train on the same batches. `--compare` fails unless the
weights agree. `tpu-host` trains with the program that `twml-ops tpu-check` passes to the TPU
compiler, compiled by XLA for the CPU. Then it copies the tables to `TPUEmbedding`, scores with rows
that the host looks up there, and copies the tables back. No TPU is used: see docs/tpu.md.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import tensorflow as tf

from twml_ops import data, distribute, layers, optimizers, tpu

N, D, BATCH, STEPS, ROWS = 5000, 16, 64, 20, 64 * 20
TOLERANCE = 1e-5


def batches() -> tf.data.Dataset:
    """Batches of ids, values and labels, padded to a static shape; the same each time."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 30, ROWS)
    ids = np.minimum(rng.zipf(1.2, lengths.sum()), N) - 1
    values = rng.uniform(0.5, 1.5, len(ids)).astype(np.float32)
    ragged = [tf.RaggedTensor.from_row_lengths(x, lengths) for x in (ids, values)]
    labels = tf.cast(tf.reduce_any(ragged[0] % 7 == 3, axis=1), tf.float32)[:, tf.newaxis]
    whole = tf.data.Dataset.from_tensor_slices(((ragged[0], ragged[1]), labels)).batch(BATCH)
    padded = data.pad_to_static(whole, 1.0, batch_size=BATCH)
    print(padded.report())
    return padded.dataset


def build(width: int) -> tf.keras.Model:
    """The model, compiled."""
    draw = tf.keras.initializers.RandomUniform
    inputs = [tf.keras.Input([width], dtype=t) for t in ("int64", "float32")]
    x = layers.MaxNorm(N, name="norm")(inputs)
    linear = layers.SparseLinear(
        D, N, "relu", kernel_initializer=draw(-0.05, 0.05, seed=1), name="table"
    )
    head = tf.keras.layers.Dense(1, "sigmoid", kernel_initializer=draw(-0.3, 0.3, seed=2))
    model = tf.keras.Model(inputs, head(linear(x)))
    model.compile(optimizers.Adagrad(0.05), "binary_crossentropy", jit_compile=False)
    return model


def train(target: str) -> list[np.ndarray]:
    """Trains for one pass over the data and returns the weights."""
    strategy = (
        distribute.mirrored_strategy(2) if target == "mirrored" else tf.distribute.get_strategy()
    )
    dataset = batches()
    width = int(dataset.element_spec[0][0].shape[1])
    with strategy.scope():
        model = build(width)
    if target == "tpu-host":
        train_compiled(model, dataset)
        through_tpu_embedding(model, dataset)
    else:
        model.fit(dataset, verbose=2, shuffle=False)
    if target == "mirrored":
        received = distribute.received_bytes(strategy)
        print(f"each replica received {received / 2 / STEPS:,.0f} bytes a step")
    return model.get_weights()


def train_compiled(model: tf.keras.Model, dataset: tf.data.Dataset) -> None:
    """Trains for one pass. Each step, with all its updates, is one XLA program."""
    model.optimizer.build(model.trainable_variables)
    step = tpu.training_step(model)
    losses = [float(step(features, labels)) for features, labels in dataset]
    print(f"loss: {np.mean(losses):.4f}")


def through_tpu_embedding(model: tf.keras.Model, dataset: tf.data.Dataset) -> None:
    """Scores with rows that are looked up in `TPUEmbedding`, and copies its tables back."""
    configs = tpu.feature_configs(model)
    embedding = tpu.create_embedding(configs)  # no TPU: TPUEmbeddingForServing
    tpu.copy_tables_to_embedding(model, embedding)
    norm = model.get_layer("norm")
    worst = 0.0
    for features, _ in dataset:
        inputs = tpu.lookup_inputs(model, {"table": norm(features)})
        with tpu.use_lookups(tpu.host_lookup(embedding, inputs, configs)):
            from_tables = model(features)
        worst = max(worst, float(tf.reduce_max(tf.abs(from_tables - model(features)))))
    print(f"largest difference of a score with looked-up rows: {worst:.2g}")
    if worst > TOLERANCE:
        raise SystemExit(f"scores differ by {worst:.2g}, more than {TOLERANCE:.0e}")
    kernel = model.get_layer("table").kernel
    kernel.assign(tf.zeros(kernel.shape))
    tpu.copy_tables_from_embedding(model, embedding)


def main(arguments: Any = None) -> None:
    """Runs the example from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", choices=["cpu", "mirrored", "tpu-host"], default="cpu")
    parser.add_argument("--out", help="file for the weights")
    parser.add_argument("--compare", help="weights of another target, which must agree")
    options = parser.parse_args(arguments)
    if options.target == "mirrored":
        distribute.mirrored_strategy(
            2
        )  # makes two logical CPUs, which must happen before TensorFlow uses a device
    weights = train(options.target)
    if options.out:
        np.savez(options.out, *weights)
    if options.compare:
        with np.load(options.compare) as other:
            worst = max(
                float(np.abs(mine - other[f"arr_{i}"]).max()) for i, mine in enumerate(weights)
            )
        print(f"largest difference from {options.compare}: {worst:.2g}")
        if worst > TOLERANCE:
            raise SystemExit(f"weights differ by {worst:.2g}, more than {TOLERANCE:.0e}")


if __name__ == "__main__":
    main()
