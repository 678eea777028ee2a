"""Settings of Hypothesis, of TensorFlow's devices and of the collector, and a fresh Keras."""

import contextlib
import gc
import os
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests import forked

# The same examples in every run, and as much time for each as a busy machine takes.
settings.register_profile(
    "twml",
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("twml")

# What the imports and the collection of tests make stays, so that there is no garbage to look for.
gc.disable()

pytest_plugins = ["tests.trained_runs"]

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")


def only_distributes():
    """Whether this process gives the tests to workers (`-n 3`), and does not need TensorFlow."""
    processes = dict(zip(sys.argv, sys.argv[1:], strict=False)).get("-n", "0")
    return processes != "0" and "PYTEST_XDIST_WORKER" not in os.environ


KERAS_3 = True
with contextlib.suppress(ImportError):  # tests/core needs no TensorFlow
    if only_distributes():
        raise ImportError
    import tensorflow as tf

    # Before TensorFlow is configured, which a forked process does by itself.
    forked.start_server()

    KERAS_3 = hasattr(tf.keras, "ops")

    # Four CPU devices: replicas.
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 4
    )


# The tests of these folders start processes or train models, some of them for a minute. They come
# first, so that all workers of pytest-xdist end at about the same time.
LONG = (
    *("benchmarks", "gpu", "distribute", "training", "cli", "placement", "checkpoint", "export"),
    "estimator",
)


def pytest_collection_finish():
    """Collects garbage from the first test on."""
    gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items):
    """Puts the tests of the folders LONG first."""

    def place(item):
        folder = item.path.relative_to(Path(__file__).parent).parts[0]
        return LONG.index(folder) if folder in LONG else len(LONG)

    items.sort(key=place)


def pytest_addoption(parser):
    """How long the slow tests of state machines run."""
    parser.addoption("--steps", type=int, default=100_000, help="of each state machine")


@pytest.fixture
def steps(request):
    """The number of steps of a state machine in a slow test."""
    return request.config.getoption("steps")


@pytest.fixture(scope="module", autouse=True)
def _what_is_there_is_not_garbage():
    """Excludes what the imports and the modules before have left from garbage collection.

    These objects, 700,000 of imports alone, live as long as the process. To visit them in each
    `clear_session` of Keras 3 took .35 s in the first tests and .9 s in the last ones of a run.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _random_state_in_kernels():
    """Keras 2 keeps random state in kernels unless told otherwise, and `train` tells it so."""
    if not KERAS_3:
        tf.keras.backend.experimental.disable_tf_random_generator()


@pytest.fixture
def fresh_keras():
    """The names, the precision and the seed that a new process has."""
    tf.keras.backend.clear_session()
    tf.keras.mixed_precision.set_global_policy("float32")
    tf.keras.utils.set_random_seed(1)
    yield
    tf.keras.mixed_precision.set_global_policy("float32")
