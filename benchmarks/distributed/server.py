"""A parameter server: TensorFlow's own, with our op library loaded. Run by `session.Session`."""

from __future__ import annotations

from typing import Any

from benchmarks.distributed import talk


def main() -> None:
    """Serves until it is killed."""
    kept: list[Any] = []

    def handle(message: dict[str, Any]) -> dict[str, Any]:
        import tensorflow as tf

        import twml_ops.ops  # noqa: F401

        servers, index = message["servers"], message["index"]
        spec = tf.train.ClusterSpec({"ps": servers})
        kept.append(tf.distribute.Server(spec, job_name="ps", task_index=index, protocol="grpc"))
        return {"serving": servers[index]}

    talk.serve(handle)


if __name__ == "__main__":
    main()
