"""The child process of test_hybrid.py: it contains three servers and is connected to them."""

from tests.child_process import serve_requests
from tests.distribute import (
    hybrid_checkpoint_child_tests,
    hybrid_child_tests,
    hybrid_exchange_child_tests,
    hybrid_exchange_every_child_tests,
)
from tests.distribute.hybrid_child import SERVERS, WORKER, child_test
from twml_ops.distribute.hybrid import Cluster
from twml_ops.distribute.hybrid.cluster import start_server

__all__ = [
    "child_test",
    "hybrid_checkpoint_child_tests",
    "hybrid_child_tests",
    "hybrid_exchange_child_tests",
    "hybrid_exchange_every_child_tests",
]

if __name__ == "__main__":
    running = [start_server(Cluster(SERVERS, job="ps", index=i)) for i in range(3)]
    Cluster(SERVERS, [WORKER]).connect(120)
    serve_requests(child_test.run)
