"""Strategies and batches for tests with replicas."""

import numpy as np
import pytest
import tensorflow as tf

from twml_ops import distribute


@pytest.fixture(scope="module", params=[2, 4])
def strategy(request):
    return distribute.mirrored_strategy(request.param)


@pytest.fixture(scope="module")
def pair():
    return distribute.mirrored_strategy(2)


def ragged_batch(rng, rows, n, skew=False, shortest=0):
    """Returns ids, values and labels of `rows` examples with 0 to 6 entries; ids may repeat."""
    lengths = rng.integers(shortest, 7, rows)
    ids = rng.integers(0, n, lengths.sum())
    ids = ids**2 // n if skew else ids
    values = rng.normal(size=len(ids)).astype(np.float32)
    ragged = [tf.RaggedTensor.from_row_lengths(x, lengths) for x in (ids, values)]
    return (*ragged, tf.constant(rng.normal(size=(rows, 1)), tf.float32))


def replicas_of(strategy, batch):
    """Splits a batch into one part for each replica, as values of the strategy."""
    k = strategy.num_replicas_in_sync
    rows = int(batch[0].shape[0]) // k

    def part(context):
        i = context.replica_id_in_sync_group
        return tuple(x[i * rows : (i + 1) * rows] for x in batch)

    return strategy.experimental_distribute_values_from_function(part)


def copies(strategy, variable):
    """Returns the value of a variable on each replica."""
    value = getattr(variable, "_value", variable)
    return [v.numpy() for v in strategy.experimental_local_results(value)]
