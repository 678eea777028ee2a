"""Synchronous steps of micro-batches have the same bits with any workers, servers and plan."""

import tempfile
import threading
from functools import partial

import numpy as np
import tensorflow as tf

from tests.distribute.parameter_server.model import (
    ROWS,
    RULES,
    builder,
    dynamic_model,
    model_with_states,
    same,
    towers_model,
)
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
from twml_ops.placement import Tiered

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


def model(worker=0):
    """A table for each optimizer, of which one is used twice, dropout and dense layers.

    Models without a seed have other ones in each process.
    """
    tf.keras.utils.set_random_seed(3)
    inputs = two_inputs()
    tables = {rule: layers.SparseTable(ROWS, 8, "he_normal") for rule in OPTIMIZERS}
    uses = {"again": "sgd", **{rule: rule for rule in OPTIMIZERS}}
    batches = {feature: inputs for feature in uses} | {"again": inputs[0]}
    found = layers.GroupedSparseLinear(tables, uses, name="tables")(batches)
    hidden = tf.keras.layers.Concatenate()([found[feature] for feature in uses])
    hidden = tf.keras.layers.Dense(5, activation="relu")(hidden)
    hidden = tf.keras.layers.Dropout(0.3, seed=5 + worker)(hidden)
    return tf.keras.Model(inputs, tf.keras.layers.Dense(1, activation="sigmoid")(hidden))


def optimizer(dense="adam"):
    rules = {f"tables/{rule}": RULES[rule]() for rule in OPTIMIZERS}
    return optimizers.CompositeOptimizer(RULES[dense](), rules)


def micro_batches(context):
    """The batches of a micro-batch: 3, 4, 4 or 5 examples of 20 entries of few ids."""
    rng = np.random.default_rng(context.input_pipeline_id)
    size = (3, 4, 4, 5)[context.input_pipeline_id]
    found = []
    for _ in range(3):
        ids = rng.integers(0, 40, [size, 20])
        values = rng.normal(size=ids.shape).astype("f")
        x = tuple(tf.RaggedTensor.from_tensor(t) for t in (ids, values))
        found.append((x, (ids.min(axis=1, keepdims=True) < 2).astype("f")))
    return found


def trained(plan, servers, workers, dense="adam", steps=3, **options):
    """All weights and slots after steps of several workers, each in a thread of this process."""
    options |= {"name": f"micro{next(_names)}", "micro_batches": MICRO_BATCHES}
    places = ((way, i % servers) for i, way in enumerate(plan))
    options["plan"] = plan_of(servers, *places)
    members = [
        trainer(
            optimizer(dense),
            servers,
            partial(model, i),
            cluster=cluster(servers, workers, i),
            **options,
        )
        for i in range(workers)
    ]
    for member in members:
        member.build(micro_batches(tf.distribute.InputContext())[0])
    threads = [threading.Thread(target=each.fit, args=(micro_batches, steps)) for each in members]
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
    return [WAYS[(first + i) % len(WAYS)] for i in range(len(OPTIMIZERS))]


def on_one_server(dense="adam"):
    return trained(["table"] * len(OPTIMIZERS), 1, 1, dense)


@child_test
def micro_batches_have_the_same_bits_with_any_workers_servers_and_plan():
    want = on_one_server()
    assert all(np.any(a != b) for a, b in zip(model().get_weights(), want, strict=False))
    same(want, trained(rotated(1), 2, 2))


@child_test
def micro_batches_have_the_same_bits_in_each_plan_with_each_optimizer():
    clusters = ((2, 1), (1, 2), (4, 4), (2, 2))
    for i, dense in enumerate(OPTIMIZERS):
        want = on_one_server(dense)
        for first, (servers, workers) in enumerate((*clusters[i:], *clusters[:i])):
            same(want, trained(rotated(first), servers, workers, dense))


@child_test
def a_checkpoint_of_micro_batches_is_continued_by_another_cluster_with_the_same_bits():
    """The other cluster also has the rows of tables in files."""
    with tempfile.TemporaryDirectory() as folder:
        options = {"checkpoint_dir": folder}
        trained(["row", "column", "replicated"], 2, 2, steps=1, **options)
        options["storage"] = Tiered(f"{folder}/rows", 64)
        found = trained(["column", "table", "replicated"], 4, 1, steps=3, **options)
    same(on_one_server(), found)


@child_test
def micro_batches_refuse_models_whose_bits_would_depend_on_the_workers():
    (batch,) = micro_batches(tf.distribute.InputContext())[:1]
    for build, message in (
        (model_with_states, "micro_batches needs a model whose states batches do not change"),
        (towers_model, "without DynamicLookup and without towers, got table .* which has a tower"),
        (dynamic_model, "without DynamicLookup and without towers, got one"),
        (trained_in_front, "without trained layers in front of a table, got one in front of"),
    ):
        hybrid = trainer(RULES["sgd"](), build=build, micro_batches=1)
        fit = partial(hybrid.fit, lambda _: [batch], 1)
        expect_error(ValueError, message, fit)
    for servers, axis, build, message in (
        (3, "row", builder, "power of two of parts, at most 8, got 3"),
        (4, "column", narrow_model, "at least two columns, got one column"),
    ):
        options = {"build": build, "micro_batches": 1, "partition_axis": axis}
        hybrid = trainer(RULES["sgd"](), servers, **options)
        expect_error(ValueError, message, lambda hybrid=hybrid: hybrid.build(batch))


class Scale(tf.keras.layers.Layer):
    """Values times a trained number."""

    def build(self, shape):
        self.factor = self.add_weight(name="factor", shape=(), initializer="ones")

    def call(self, values):
        return values * tf.convert_to_tensor(self.factor)

    def compute_output_shape(self, shape):
        return shape


def two_inputs():
    return [tf.keras.Input([None], dtype=t, ragged=True) for t in ("int64", "float32")]


def narrow_model():
    inputs = two_inputs()
    return tf.keras.Model(inputs, layers.SparseLinear(4, ROWS, activation="sigmoid")(inputs))


def trained_in_front():
    inputs = two_inputs()
    table = layers.SparseLinear(1, ROWS, activation="sigmoid")
    return tf.keras.Model(inputs, table([inputs[0], Scale()(inputs[1])]))
