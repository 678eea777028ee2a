"""Which weights of a model ranks exchange, and how."""

import pytest
import tensorflow as tf

from twml_ops import layers, optimizers
from twml_ops.distribute.peer_weights import SharedArray, SharedTable, shared_weights

pytest.importorskip("ml_dtypes")

OPTIMIZERS = {
    "alone": lambda: optimizers.Adagrad(0.1),
    "part of a composite": lambda: optimizers.CompositeOptimizer(
        tf.keras.optimizers.Adam(), {"sparse_linear": optimizers.Adagrad(0.1)}
    ),
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_tables_travel_by_rows_before_the_first_step_too(fresh_keras, optimizer):
    ids = tf.keras.Input([3], dtype="int64")
    hidden = layers.SparseLinear(4, 50, use_bias=False, name="sparse_linear")(ids)
    model = tf.keras.Model(ids, tf.keras.layers.Dense(1)(hidden))
    model.compile(OPTIMIZERS[optimizer](), "mse")
    kinds = [type(each) for each in shared_weights(model, "weights", None, None)]
    assert kinds == [SharedTable, SharedArray, SharedArray]


@pytest.mark.parametrize("kind", ["lookup", "linear"])
def test_rows_of_dynamic_ids_are_refused_since_each_rank_gives_them_to_other_ids(fresh_keras, kind):
    ids = tf.keras.Input([3], dtype="int64")
    if kind == "linear":
        hidden = layers.DynamicSparseLinear(4, 50)(ids)
    else:
        hidden = layers.SparseLinear(4, 50)(layers.DynamicLookup(50)(ids))
    model = tf.keras.Model(ids, tf.keras.layers.Dense(1)(hidden))
    model.compile(optimizers.Adagrad(0.1), "mse")
    with pytest.raises(ValueError, match="the same id on all ranks, got the layer '"):
        shared_weights(model, "weights", None, None)
