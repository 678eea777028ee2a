"""The child process of test_one_process.py: it has four servers and is connected to them."""

from tests.child_process import serve_requests
from tests.distribute.parameter_server import (
    checkpoint_child_tests,
    clipping_child_tests,
    dynamic_child_tests,
    exchange_child_tests,
    exchange_every_child_tests,
    frozen_child_tests,
    layer_states_child_tests,
    micro_batch_child_tests,
    plan_child_tests,
    shared_rows_child_tests,
    storage_child_tests,
    tables_on_workers_child_tests,
    tower_child_tests,
    training_child_tests,
)
from tests.distribute.parameter_server.trainers import SERVERS, WORKER, child_test
from twml_ops.distribute.parameter_server import Cluster
from twml_ops.distribute.parameter_server.cluster import start_server

__all__ = [
    "checkpoint_child_tests",
    "child_test",
    "clipping_child_tests",
    "dynamic_child_tests",
    "exchange_child_tests",
    "exchange_every_child_tests",
    "frozen_child_tests",
    "layer_states_child_tests",
    "micro_batch_child_tests",
    "plan_child_tests",
    "shared_rows_child_tests",
    "storage_child_tests",
    "tables_on_workers_child_tests",
    "tower_child_tests",
    "training_child_tests",
]

if __name__ == "__main__":
    running = [start_server(Cluster(SERVERS, job="ps", index=i)) for i in range(4)]
    Cluster(SERVERS, [WORKER]).connect(120)
    serve_requests(child_test.run)
