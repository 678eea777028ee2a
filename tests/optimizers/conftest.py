"""Fresh Keras state for every test, and a look at the ops that ran."""

import collections
import contextlib

import pytest
from tensorflow.python.eager import context  # the one private import of the tests

NODES = {
    "Twml>SparseLinearBackwardApply": "fused",
    "Twml>ApplyRows": "by slices",
    "Twml>SparseLinearWeightsGrad": "gradient",
    "Twml>AverageRows": "averages",
}


@pytest.fixture(autouse=True)
def _fresh_keras(fresh_keras):
    """For every test of an optimizer."""


@pytest.fixture
def executed():
    """A context whose value lists our ops in the graphs run in it, after pruning and inlining.

    Graphs are seen when TensorFlow first runs them: enter it before the first call.
    """

    @contextlib.contextmanager
    def watch():
        seen = collections.Counter()
        context.enable_run_metadata()
        context.export_run_metadata()  # forgets what ran before
        try:
            yield seen
        finally:
            graphs = context.export_run_metadata().partition_graphs
            context.disable_run_metadata()
        seen.update(NODES[node.op] for g in graphs for node in g.node if node.op in NODES)

    return watch
