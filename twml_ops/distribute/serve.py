"""`python -m twml_ops.distribute.serve`: runs the parameter server that `TF_CONFIG` describes."""

from __future__ import annotations

from twml_ops import ops  # noqa: F401  loads the op library, whose kernels run in this process
from twml_ops.distribute.parameter_server.cluster import Cluster, serve

if __name__ == "__main__":
    cluster = Cluster.from_environment()
    if cluster.job != "ps":
        raise SystemExit(f"TF_CONFIG must describe a ps task, got {cluster.job!r}")
    try:
        serve(cluster)
    except ImportError as e:
        raise SystemExit(str(e)) from None
