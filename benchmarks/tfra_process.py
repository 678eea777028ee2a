"""Process that runs TensorFlow Recommenders Addons (TFRA), which needs another TensorFlow version.

benchmarks/contenders/tfra.py starts it with the Python of that version. TFRA's table is a hash
table: a training step looks up the rows of the distinct ids of the batch and writes them back.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import tensorflow as tf

from benchmarks import reference
from benchmarks.workload import Batch, Case

CHUNK = 2**16  # keys that are written or read at a time


def main(rule: str, channel: Connection) -> None:
    """Receives a `Case`; then answers the index of a batch with the output, None with the table.

    Args:
        rule: the optimizer; "" for the forward pass alone.
        channel: connection to the parent process.
    """
    case: Case = channel.recv()
    tf.config.threading.set_intra_op_parallelism_threads(case.threads)
    tf.config.threading.set_inter_op_parallelism_threads(case.threads)
    try:
        run, table = prepare(rule, case)
        channel.send("")
    except Exception as e:  # the parent process reports the reason
        channel.send(f"{type(e).__name__}: {e}"[:200])
        return
    while True:
        try:
            batch = channel.recv()
        except EOFError:
            return
        channel.send(table() if batch is None else run(batch))


def prepare(rule: str, case: Case) -> tuple[Callable[[int], np.ndarray], Callable[[], np.ndarray]]:
    """A function that runs a step (or a forward pass), and one that returns the weights."""
    import tensorflow_recommenders_addons as tfra

    embeddings = tfra.dynamic_embedding
    keys = tf.data.Dataset.range(len(case.table)).batch(CHUNK)
    store = embeddings.get_variable(
        "table", tf.int64, tf.float32, case.table.shape[1], ["CPU:0"], init_size=len(case.table)
    )
    for ids in keys:
        store.upsert(ids, tf.constant(case.table[ids[0] : ids[-1] + 1]))
    rows_of_batch = embeddings.shadow_ops.ShadowVariable(store, name="rows")

    def product(ids: tf.Tensor, values: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
        unique, positions = tf.unique(ids)
        found = embeddings.shadow_ops.embedding_lookup(rows_of_batch, unique)
        return tf.math.segment_sum(tf.gather(found, positions) * values[:, None], rows)

    signature = [tf.TensorSpec([None], t) for t in (tf.int64, tf.float32, tf.int32)]
    grad = tf.constant(case.grad_output)
    optimizer = embeddings.DynamicEmbeddingOptimizer(OPTIMIZERS[rule]()) if rule else None

    @tf.function(input_signature=signature)
    def run(ids: tf.Tensor, values: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
        if optimizer is None:
            return product(ids, values, rows)
        with tf.GradientTape() as tape:
            output = product(ids, values, rows)
        gradients = tape.gradient(output, [rows_of_batch], output_gradients=grad)
        optimizer.apply_gradients([(gradients[0], rows_of_batch)])
        return output

    inputs = [_inputs(b) for b in case.batches]
    return (
        lambda i: run(*inputs[i]).numpy(),
        lambda: np.concatenate([store.lookup(ids).numpy() for ids in keys]),
    )


def _inputs(batch: Batch) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    rows = tf.constant(batch.row_indices, tf.int32)
    return tf.constant(batch.ids), tf.constant(batch.values), rows


def _legacy(name: str, *arguments: Any, **named: Any) -> Callable[[], Any]:
    return lambda: getattr(tf.keras.optimizers.legacy, name)(*arguments, **named)


OPTIMIZERS = {
    "sgd": _legacy("SGD", reference.LEARNING_RATE),
    "adagrad": _legacy(
        "Adagrad", reference.LEARNING_RATE, reference.INITIAL_ACCUMULATOR, reference.EPSILON
    ),
    "lazy_adam": _legacy(
        "Adam", reference.LEARNING_RATE, reference.BETA_1, reference.BETA_2, reference.EPSILON
    ),
}

if __name__ == "__main__":
    main(sys.argv[1], Connection(int(sys.argv[2])))
