"""A parameter server: TensorFlow's server with the op library loaded. `session` starts it."""

from __future__ import annotations

from typing import Any

from benchmarks.distributed import json_lines


def main() -> None:
    """Serves until it is killed."""
    running_servers: list[Any] = []  # keeps them alive

    def handle(message: dict[str, Any]) -> dict[str, Any]:
        import tensorflow as tf

        import twml_ops.ops  # noqa: F401

        servers, index = message["servers"], message["index"]
        spec = tf.train.ClusterSpec({"ps": servers})
        server = tf.distribute.Server(spec, job_name="ps", task_index=index, protocol="grpc")
        running_servers.append(server)
        return {"serving": servers[index]}

    json_lines.serve(handle)


if __name__ == "__main__":
    main()
