"""What the tests in the child process share: its servers, trainers and models."""

import contextlib
import threading

import numpy as np
import pytest
import tensorflow as tf

from tests.child_process import ChildTests
from tests.distribute.parameter_server.model import batches as batches_of_model
from tests.distribute.parameter_server.model import builder, same, whole_batches
from twml_ops import layers
from twml_ops.distribute.launch import Ports
from twml_ops.distribute.parameter_server import Cluster, HybridTrainer, iter_checkpoints
from twml_ops.distribute.parameter_server.state import optimizer_of
from twml_ops.planning import ShardedTable, ShardingPlan

PORTS = Ports(5)
*SERVERS, WORKER = [f"127.0.0.1:{port}" for port in PORTS.numbers]
child_test = ChildTests()


class ConnectedCluster(Cluster):
    """A cluster to which this process is connected already."""

    def connect(self, timeout):
        del timeout


def first_servers(count):
    return ConnectedCluster(SERVERS[:count], [WORKER])


TWO_WORKERS = ConnectedCluster(SERVERS[:2], [WORKER, "another:1"], "worker", 0)
_runs = iter(range(1000))


class SecondWorker(ConnectedCluster):
    """The second worker, which is the same process as the first."""

    own_device = TWO_WORKERS.own_device


class Stop(tf.keras.layers.Layer):
    """The identity, at which a step stops when it has its products, until `go` has an element."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.arrived = threading.Semaphore(0)
        self.go = tf.queue.FIFOQueue(100, [tf.float32], [[]])

    def call(self, x, training=False):
        @tf.custom_gradient
        def identity(x):
            arrived = tf.numpy_function(lambda x: (self.arrived.release(), x)[1], [x], x.dtype)
            with tf.control_dependencies([arrived]):
                y = x + self.go.dequeue()
            return y, lambda upstream: upstream

        return identity(x) if training else x

    def compute_output_shape(self, input_shape):
        return input_shape

    def step_until_there(self, hybrid, batch):
        """Begins a step in a thread, and returns the thread when the step has stopped here."""
        while self.arrived.acquire(blocking=False):
            pass
        thread = threading.Thread(target=step_with, args=(hybrid, batch))
        thread.start()
        self.arrived.acquire()
        return thread


def asynchronous_workers(builds, make, batch, servers=2, **options):
    """The trainers of two workers of one run in this process; `builds` make the model of each."""
    options = {"mode": "async", "name": f"run{next(_runs)}", **options}
    found = []
    for i, (build, cluster) in enumerate(
        zip(builds, (ConnectedCluster, SecondWorker), strict=True)
    ):
        member = cluster(SERVERS[:servers], [WORKER, "another:1"], "worker", i)
        found.append(trainer(make(), servers, build, cluster=member, **options))
        found[-1].build(batch)
    return found


class _DoneError(Exception):
    pass


def step_with(hybrid, *batches):
    """A call of a worker, with one exchange; the run goes on only as long as all workers train."""

    def end(step, loss):
        raise _DoneError

    done = hybrid.steps_done()
    until = done + len(batches) * len(hybrid.cluster.workers)
    with contextlib.suppress(_DoneError):
        hybrid.fit(lambda _: list(batches), until, end, begin=done)


def trainer(optimizer, servers=2, build=builder, loss="binary_crossentropy", **options):
    """A trainer whose tables are all on the servers unless `options` say otherwise."""
    options.setdefault("replicated_rows", 0)
    options.setdefault("name", f"run{next(_runs)}")
    options.setdefault("cluster", first_servers(servers))
    return HybridTrainer(build, optimizer, loss, **options)


def weights_of_snapshots(hybrid, steps):
    """The weights after each of the steps, of which snapshots are taken and checkpoints written."""
    seen = []
    for step in steps:
        hybrid.fit(batches_of_model, step, begin=0, save_last=False)
        hybrid.take_snapshot()
        seen.append(hybrid.export().get_weights())
        hybrid.save()
    return seen


def check_snapshots(hybrid, seen, build, folder, until):
    """The last checkpoint has the last weights of `weights_of_snapshots`, and the average all."""
    ((step, plain),) = iter_checkpoints(build, folder, until=until)
    assert step == until
    same(seen[-1], plain.get_weights())
    hybrid.use_average()
    means = [np.mean(each, axis=0) for each in zip(*seen, strict=True)]
    same(means, hybrid.export().get_weights(), 1e-6)


def export_with_slots(hybrid, optimizer):
    """The trained model with the slots of the run, and the values of these slots."""
    model = hybrid.export()
    model.compile(optimizer)
    model.optimizer.build(model.trainable_variables)
    hybrid.export_slots(model)
    slots = (optimizer_of(model.optimizer, v).slots_of(v) for v in model.trainable_variables)
    return model, [np.array(s) for of_weight in slots for s in of_weight]


def train_alone(optimizer, build=builder, steps=10, loss="binary_crossentropy", batches=None):
    model = build()
    model.compile(optimizer, loss, jit_compile=False)
    for x, y in ((batches or whole_batches()) * 2)[:steps]:
        model.train_on_batch(x, y)
    return model.get_weights()


def expect_error(kind, message, call):
    with pytest.raises(kind, match=message):
        call()


def plan_of(servers, *places):
    """A plan of (way, first server) of each table."""
    zeros = (0.0,) * servers
    return ShardingPlan(tuple(ShardedTable(*place) for place in places), zeros, zeros)


GROUP = {"user": layers.SparseTable(300, 4), "ad": layers.SparseTable(300, 6, "he_normal")}
FEATURES = {"user": "user", "shown": "ad", "clicked": "ad"}


def grouped_model():
    """Tables of one layer: one is used with values, the other with and without."""
    tf.keras.utils.set_random_seed(7)
    inputs = [tf.keras.Input([None], dtype=t, ragged=True) for t in ("int64", "float32")]
    group = layers.GroupedSparseLinear(GROUP, FEATURES, name="ads")
    found = group({"user": inputs, "shown": inputs[0], "clicked": inputs})
    joined = tf.keras.layers.Concatenate()([found[f] for f in FEATURES])
    return tf.keras.Model(inputs, tf.keras.layers.Dense(1, activation="sigmoid")(joined))


FIELDS = {
    "one width": {"units": 4},
    "a table for each width": {"units": [4, 2, 4, 2], "projected_units": 4},
    "pooled with a penalty": {"units": 4, "l2": 0.1, "embeddings_initializer": "he_normal"},
}
FIELD_ROWS = [40, 30, 20, 50]


def field_model(**options):
    """Vectors of two fields and two bags, one with weights, whose sizes and widths may differ."""
    tf.keras.utils.set_random_seed(7)
    ids = tf.keras.Input([2], dtype="int64", name="ids")
    bags = [
        tf.keras.Input([None], dtype=t, ragged=True, name=name)
        for t, name in (("int64", "tags"), ("int64", "words"), ("float32", "weights"))
    ]
    table = layers.FieldEmbedding(FIELD_ROWS, num_bags=2, name="fields", **options)
    vectors = table([ids, bags[0], bags[1:]])
    x = tf.keras.layers.Flatten()(vectors)
    return tf.keras.Model([ids, *bags], tf.keras.layers.Dense(1, activation="sigmoid")(x))


def field_batches():
    """Eight batches with missing and repeated ids, empty bags and labels that depend on a field."""
    rng = np.random.default_rng(1)
    found = []
    for _ in range(8):
        ids = rng.integers(-1, 19, [16, 2])
        splits = np.sort(np.concatenate([[0, 40], rng.integers(0, 40, 15)]))
        tags, words = (
            tf.RaggedTensor.from_row_splits(rng.integers(0, n, 40), splits) for n in (19, 49)
        )
        weights = words.with_values(tf.constant(rng.uniform(0.5, 2, 40), tf.float32))
        found.append(((tf.constant(ids), tags, words, weights), (ids[:, :1] < 6).astype("f")))
    return found
