"""What the tests in the child process share: its servers, trainers and models."""

import pytest
import tensorflow as tf

from tests.child_process import ChildTests
from tests.distribute.parameter_server.model import builder, whole_batches
from twml_ops import layers
from twml_ops.distribute.launch import Ports
from twml_ops.distribute.parameter_server import Cluster, HybridTrainer

PORTS = Ports(4)
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


def trainer(optimizer, servers=2, build=builder, loss="binary_crossentropy", **options):
    options.setdefault("name", f"run{next(_runs)}")
    options.setdefault("cluster", first_servers(servers))
    return HybridTrainer(build, optimizer, loss, **options)


def train_alone(optimizer, build=builder, steps=10, loss="binary_crossentropy"):
    model = build()
    model.compile(optimizer, loss, jit_compile=False)
    for x, y in (whole_batches() * 2)[:steps]:
        model.train_on_batch(x, y)
    return model.get_weights()


def expect_error(kind, message, call):
    with pytest.raises(kind, match=message):
        call()


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
