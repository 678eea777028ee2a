"""Process that trains one table of benchmarks/tiered.py, in memory or in a file."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks import machine
from benchmarks.workload import Workload

SLACK_BYTES = 16 << 20  # for pages of the kernel


def main() -> None:
    """Reads the setting, then the number of steps of each turn, from lines of JSON."""
    setting = json.loads(sys.stdin.readline())
    group = enter_group() if setting["limit"] and setting["storage"] else None
    machine.limit_threads(setting["threads"])
    training = Training(setting, group)
    for line in sys.stdin:
        print(json.dumps(training.turn(int(line))), flush=True)


class Training:
    """Steps of a `SparseLinear` with Adagrad on batches from an input pipeline.

    Args:
        setting: sizes, skew, storage and whether memory is limited.
        group: the group of this process, whose memory is limited, once the batches are there, to
            what it has, what the table asks for, a tenth of that, what the steps take, and
            `SLACK_BYTES`.
    """

    def __init__(self, setting: dict[str, Any], group: Path | None) -> None:
        import tensorflow as tf

        from twml_ops import layers, optimizers

        self._setting = setting
        workload = workload_of(setting)
        batches = workload.batches(setting["batches"])
        signature = tf.RaggedTensorSpec([None, None], tf.int32, row_splits_dtype=tf.int64)
        made = [
            tf.RaggedTensor.from_row_splits(b.ids.astype("int32"), b.row_splits) for b in batches
        ]
        grad = tf.random.stateless_normal([workload.batch_size, setting["units"]], [1, 2])
        dataset = tf.data.Dataset.from_generator(lambda: made, output_signature=signature).repeat()
        storage = setting["storage"]
        self.limit = 0  # none
        self._before = resident_bytes()
        tier = None
        if storage is not None:
            tier = layers.Tiered(**storage)
            self.asked = tier.memory_bytes(setting["rows"], 8 * setting["units"])
            if group is not None:
                # Pages of libraries may belong to another group, so the resident memory is more.
                used = int((group / "memory.usage_in_bytes").read_text())
                more = int(1.1 * self.asked) + setting["of_steps"] + SLACK_BYTES
                self.limit = used + more
                (group / "memory.limit_in_bytes").write_text(str(self.limit))
        # A table of zeros would not be read from the file. In memory the random numbers of a whole
        # table would take memory that the process keeps.
        initializer = tf.keras.initializers.Zeros()
        if tier is not None:
            initializer = tf.keras.initializers.RandomUniform(-0.05, 0.05, seed=1)
        layer = layers.SparseLinear(
            setting["units"],
            setting["rows"],
            use_bias=False,
            kernel_initializer=initializer,
            storage=tier,
        )
        layer.build(None)
        optimizer = optimizers.Adagrad(0.05)
        optimizer.build(layer.trainable_variables)

        @tf.function(jit_compile=False)
        def step(ids: Any) -> Any:
            with tf.GradientTape() as tape:
                y = layer(ids)
            gradients = tape.gradient(y, layer.trainable_variables, grad)
            optimizer.apply_gradients(zip(gradients, layer.trainable_variables, strict=True))
            return y[0, 0]

        self._step = step.get_concrete_function(made[0])
        if tier is not None:
            dataset = dataset.map(lambda ids: announced(layer, ids))
        self._batches: Iterator[Any] = iter(dataset.prefetch(setting["ahead"]))
        self._layer = layer
        self._tf = tf

    def turn(self, steps: int) -> dict[str, Any]:
        """Trains some steps.

        Args:
            steps: how many.

        Returns:
            The seconds of each step, counts of the storage, and memory.
        """
        before = self._statistics()
        seconds = []
        for _ in range(steps):
            start = time.perf_counter()
            self._step(next(self._batches)).numpy()
            seconds.append(time.perf_counter() - start)
        now = self._statistics()
        counts = {k: v - before[k] for k, v in now.items()}
        flags = {k: now[k] for k in ("direct", "io_uring") if k in now}
        found: dict[str, Any] = {"seconds": seconds, **counts, **flags}
        if self._setting["storage"] is not None:
            found |= {"asked": self.asked, "limit": self.limit}
        return found | {"resident": resident_bytes() - self._before}

    def _statistics(self) -> dict[str, int]:
        from twml_ops import placement

        place = placement.placement_of(self._layer.kernel)
        if not isinstance(place, placement.TieredPlacement):
            return {}
        return place.statistics(self._layer.kernel)._asdict()


def workload_of(setting: dict[str, Any]) -> Workload:
    """The sizes of a setting.

    Args:
        setting: sizes and skew.
    """
    return Workload(
        setting["rows"],
        setting["units"],
        batch_size=setting["batch_size"],
        skew=setting["skew"],
    )


def announced(layer: Any, ids: Any) -> Any:
    """The batch, announced to the table."""
    import tensorflow as tf

    with tf.control_dependencies([layer.prefetch_rows(ids)]):
        return tf.nest.map_structure(tf.identity, ids, expand_composites=True)


def resident_bytes() -> int:
    """The resident memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def enter_group() -> Path:
    """Moves this process into a new group of cgroup v1, which the parent process removes.

    Returns:
        The folder of the group.
    """
    group = group_of(os.getpid())
    group.mkdir()
    (group / "cgroup.procs").write_text(str(os.getpid()))
    return group


def group_of(process: int) -> Path:
    """The folder of the group of a process.

    Args:
        process: its number.
    """
    return Path(f"/sys/fs/cgroup/memory/twml_ops_benchmark_{process}")


if __name__ == "__main__":
    main()
