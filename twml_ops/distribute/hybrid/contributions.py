"""The contributions of synchronous workers to a step, and their combination."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from twml_ops.distribute.hybrid import dense_gradients
from twml_ops.distribute.hybrid.updates import ShardGradient
from twml_ops.distribute.hybrid.wire import ShardEntries

_TENSORS_PER_USE = 4  # ids, values, row_splits and the gradient of the product


def of_worker(
    devices: Sequence[str],
    by_server: Sequence[Sequence[ShardGradient]],
    gradients: Sequence[Any],
    num_rows: tf.Tensor,
) -> dict[tuple[str, str], list[tf.Tensor]]:
    """Returns what a worker contributes.

    Args:
        devices: The servers.
        by_server: [server][use] entries and gradients of products, on the servers.
        gradients: The dense gradients; None where there is none.
        num_rows: The number of examples of the batch, a float32 scalar.

    Returns:
        (device, label) -> tensors for that device.
    """
    own = {
        (device, "sparse"): [t for entries, gradient in uses for t in (*entries, gradient)]
        for device, uses in zip(devices, by_server, strict=True)
        if uses
    }
    packed = dense_gradients.pack([g for g in gradients if g is not None])
    own[devices[0], "dense"] = [num_rows, *tf.nest.flatten(packed, expand_composites=True)]
    return own


def combine(
    devices: Sequence[str],
    collected: Mapping[tuple[str, str], Sequence[Sequence[tf.Tensor]]],
    uses: int,
    gradients: Sequence[Any],
) -> tuple[list[list[list[ShardGradient]]], list[Any]]:
    """Combines the contributions of all workers into the contributions of the concatenated batch.

    Args:
        devices: The servers.
        collected: (device, label) -> [worker] the tensors of `of_worker`.
        uses: The number of products of a batch.
        gradients: The dense gradients of this worker.

    Returns:
        [server][worker][use] entries and gradients, and the dense gradients.
    """
    sparse: list[list[list[ShardGradient]]] = []
    for device in devices if uses else ():
        workers = collected[device, "sparse"]
        with tf.device(device):
            sizes = [tf.cast(tf.shape(w[3])[0], tf.float32) for w in workers]
            total = tf.add_n(sizes)
            sparse.append(
                [
                    [
                        (ShardEntries(*w[i : i + 3]), w[i + 3] * (n / total))
                        for i in range(0, _TENSORS_PER_USE * uses, _TENSORS_PER_USE)
                    ]
                    for w, n in zip(workers, sizes, strict=True)
                ]
            )
    rows = [w[0] for w in collected[devices[0], "dense"]]
    shares = [n / tf.add_n(rows) for n in rows]
    like = [g for g in gradients if g is not None]
    structure = dense_gradients.pack(like)
    by_worker = [
        tf.nest.pack_sequence_as(structure, w[1:], expand_composites=True)
        for w in collected[devices[0], "dense"]
    ]
    packed = [dense_gradients.weighted_sum(g, shares) for g in zip(*by_worker, strict=True)]
    means = iter(dense_gradients.unpack(packed, like))
    return sparse, [None if g is None else next(means) for g in gradients]
