"""The same model trained on one CPU and on mirrored replicas: the strategy is the only difference.

    cd examples
    python one_model_three_targets.py --target cpu      --out cpu.npz
    python one_model_three_targets.py --target mirrored --out mirrored.npz --compare cpu.npz

All targets start from the same weights and see the same batches; `--compare` fails unless the
weights agree. The third target, a TPU, is not there yet.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import tensorflow as tf

from twml_ops import data, distribute, layers, optimizers

N, D, BATCH, STEPS, ROWS = 5000, 16, 64, 20, 64 * 20
TOLERANCE = 1e-5


def batches() -> tf.data.Dataset:
    """Ragged ids, values and labels, the same each time; padded to a static shape."""
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
    """The one model."""
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
    """The weights after one pass."""
    strategy = distribute.mirrored(2) if target == "mirrored" else tf.distribute.get_strategy()
    dataset = batches()
    width = int(dataset.element_spec[0][0].shape[1])
    with strategy.scope():
        model = build(width)
    model.fit(dataset, verbose=2, shuffle=False)
    if target == "mirrored":
        received = distribute.received_bytes(strategy)
        print(f"each replica received {received / 2 / STEPS:,.0f} bytes a step")
    return model.get_weights()


def main(arguments: Any = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", choices=["cpu", "mirrored"], default="cpu")
    parser.add_argument("--out", help="file for the weights")
    parser.add_argument("--compare", help="weights of another target, which must agree")
    options = parser.parse_args(arguments)
    if options.target == "mirrored":
        distribute.mirrored(2)  # makes two logical CPUs, before TensorFlow starts its devices
    weights = train(options.target)
    if options.out:
        np.savez(options.out, *weights)
    if options.compare:
        with np.load(options.compare) as other:
            worst = max(
                float(np.abs(mine - other[f"arr_{i}"]).max()) for i, mine in enumerate(weights)
            )
        print(f"largest difference to {options.compare}: {worst:.2g}")
        if worst > TOLERANCE:
            raise SystemExit(f"weights differ by {worst:.2g}, more than {TOLERANCE:.0e}")


if __name__ == "__main__":
    main()
