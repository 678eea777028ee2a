"""Synchronous steps of micro-batches have the same bits with any workers, servers and plan."""

import threading

import numpy as np
import tensorflow as tf

from tests.distribute.parameter_server.model import RULES, ROWS, dynamic_model, model_with_states
from tests.distribute.parameter_server.model import builder, same, towers_model
from tests.distribute.parameter_server.trainers import (
    SERVERS,
    TWO_WORKERS,
    WORKER,
    ConnectedCluster,
    child_test,
    expect_error,
    first_servers,
    plan_of,
    trainer,
)
from twml_ops import layers, optimizers
from twml_ops.distribute.parameter_server.state import optimizer_of

MICRO_BATCHES = 4
OPTIMIZERS = ("sgd", "adagrad", "adam")
WAYS = ("table", "row", "column", "replicated")
_names = iter(range(1000))


class Worker(ConnectedCluster):
    """One of several workers in this process."""

    own_device = TWO_WORKERS.own_device


def cluster(servers, workers, index):
    if workers == 1:
        return first_servers(servers)
    addresses = [WORKER, *(f"another:{i}" for i in range(1, workers))]
    return Worker(SERVERS[:servers], addresses, "worker", index)


def model():
    """A table for each optimizer, of which one is used twice, dropout and dense layers."""
    tf.keras.utils.set_random_seed(3)
    inputs = [tf.keras.Input([None], dtype=t, ragged=True) for t in ("int64", "float32")]
    tables = {rule: layers.SparseTable(ROWS, 4, "he_normal") for rule in OPTIMIZERS}
    uses = {"again": "sgd", **{rule: rule for rule in OPTIMIZERS}}
    batches = {feature: inputs for feature in uses} | {"again": inputs[0]}
    found = layers.GroupedSparseLinear(tables, uses, name="tables")(batches)
    hidden = tf.keras.layers.Concatenate()([found[feature] for feature in uses])
    hidden = tf.keras.layers.Dense(5, activation="relu")(hidden)
    hidden = tf.keras.layers.Dropout(0.3, seed=5)(hidden)
    return tf.keras.Model(inputs, tf.keras.layers.Dense(1, activation="sigmoid")(hidden))


def optimizer(dense="adagrad"):
    rules = {f"tables/{rule}": RULES[rule]() for rule in OPTIMIZERS}
    return optimizers.CompositeOptimizer(RULES[dense](), rules)


def micro_batches(context):
    """The batches of a micro-batch: 3, 4, 4 or 5 examples of 20 entries of few ids."""
    rng = np.random.default_rng(context.input_pipeline_id)
    size = (3, 4, 4, 5)[context.input_pipeline_id]
    found = []
    for _ in range(3):
        ids = rng.integers(0, 40, [size, 20])
        x = tf.RaggedTensor.from_tensor(ids), tf.RaggedTensor.from_tensor(
            rng.normal(size=ids.shape).astype("f")
        )
        found.append((x, (ids.min(axis=1, keepdims=True) < 2).astype("f")))
    return found


def trained(plan, servers, workers, dense="adagrad"):
    """All weights and slots after steps of several workers, each in a thread of this process."""
    options = {"name": f"micro{next(_names)}", "micro_batches": MICRO_BATCHES}
    options |= {"build": model, "plan": plan_of(servers, *((way, i % servers) for i, way in plan))}
    members = [
        trainer(optimizer(dense), servers, cluster=cluster(servers, workers, i), **options)
        for i in range(workers)
    ]
    for member in members:
        member.build(micro_batches(tf.distribute.InputContext())[0])
    threads = [threading.Thread(target=each.fit, args=(micro_batches, 3)) for each in members]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    whole = members[0].export()
    whole.compile(optimizer(dense))
    whole.optimizer.build(whole.trainable_variables)
    members[0].export_slots(whole)
    slots = (optimizer_of(whole.optimizer, v).slots_of(v) for v in whole.trainable_variables)
    return [*whole.get_weights(), *(np.array(s) for of_weight in slots for s in of_weight)]


def rotated(first):
    """A way for each table, beginning with one of `WAYS`."""
    return [(i, WAYS[(first + i) % len(WAYS)]) for i in range(len(OPTIMIZERS))]


def check_plans(cases, dense="adagrad"):
    want = trained([(i, "table") for i in range(len(OPTIMIZERS))], 1, 1, dense)
    before = model().get_weights()
    assert all(np.any(a != b) for a, b in zip(before, want, strict=False))
    for first, servers, workers in cases:
        same(want, trained(rotated(first), servers, workers, dense))


@child_test
def micro_batches_have_the_same_bits_with_any_workers_servers_and_plan():
    check_plans([(1, 2, 2), (2, 2, 4)])


@child_test
def micro_batches_have_the_same_bits_in_each_plan_slow():
    for dense in OPTIMIZERS:
        check_plans([(way, s, w) for way in range(4) for s, w in ((2, 1), (1, 2), (4, 4))], dense)
