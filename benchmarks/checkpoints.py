"""Measures incremental and quantized checkpoints, and what marking the changed rows costs.

    python -m benchmarks.checkpoints [--rows N] [--units D] [--intervals I] [--json FILE]

The traffic is Zipf, with as many draws in an interval as touch about a tenth of the rows. Each line
compares the bytes of one policy and width with full float32 checkpoints: those that were written
after the first checkpoint, and those that are kept for the newest one. The log loss is that of a
logistic model on one table, restored from the newest checkpoint, against the model itself, on the
same examples; and once more after both have been trained on the same further batches, to which
the precision of the slots matters.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from benchmarks import machine, tables
from twml_ops import ops, optimizers
from twml_ops.checkpoint import CheckpointManager, TablePolicy
from twml_ops.checkpoint.variables import NamedVariable

POLICIES = ("full", "one-shot", "consecutive", "intermittent")
WIDTHS = ((32, 32), (8, 8), (8, 4), (4, 4), (3, 3), (2, 2))
"""Bits of a weight, and of an item of a slot."""

BATCH, ENTRIES = 1024, 20
STEPS_PER_BLOCK = 10


class Training:
    """A logistic model on the sum of table rows, with labels from a hidden model."""

    def __init__(self, rows: int, units: int, exponent: float, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.rows, self.units = rows, units
        probability = np.arange(1, rows + 1) ** -exponent
        self.cumulative = np.cumsum(probability / probability.sum())
        self.hidden = self.rng.normal(size=rows).astype(np.float32) / 2
        self.order = self.rng.permutation(rows)
        self.table = tf.Variable(tf.random.stateless_normal([rows, units], [seed, 1]) * 0.01)
        self.output = tf.constant(self.rng.normal(size=[units, 1]), tf.float32)
        self.optimizer = optimizers.Adagrad(0.05)
        self.optimizer.build([self.table])
        self.slots = self.optimizer.slots_of(self.table)
        self.step = tf.function(self._step, reduce_retracing=True)
        self.splits = tf.range(0, (BATCH + 1) * ENTRIES, ENTRIES, dtype=tf.int64)

    def variables(self) -> list[NamedVariable]:
        """The table and its accumulator, as a manager saves them."""
        slots = (NamedVariable(f"s{i}", f"slot{i}", (s,), "t") for i, s in enumerate(self.slots))
        return [NamedVariable("t", "table", (self.table,), "t"), *slots]

    def batch(self) -> tuple[tf.Tensor, tf.Tensor]:
        """Ids and labels."""
        ranks = np.searchsorted(self.cumulative, self.rng.random(BATCH * ENTRIES))
        ids = self.order[np.minimum(ranks, self.rows - 1)]
        logit = self.hidden[ids].reshape(BATCH, ENTRIES).sum(axis=1)
        labels = self.rng.random(BATCH) < 1 / (1 + np.exp(-logit))
        return tf.constant(ids), tf.constant(labels[:, None], tf.float32)

    def loss(self, ids: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        """The log loss of a batch."""
        hidden = ops.sparse_linear(ids, None, self.splits, self.table)
        logits = tf.matmul(hidden, self.output)
        return tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels, logits))

    def _step(self, ids: tf.Tensor, labels: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = self.loss(ids, labels)
        self.optimizer.apply_gradients([(tape.gradient(loss, self.table), self.table)])


def measure_policy(
    training: Training,
    policy: str,
    widths: tuple[int, int],
    intervals: int,
    share: float,
    test: list[tuple[tf.Tensor, tf.Tensor]],
    further: list[tuple[tf.Tensor, tf.Tensor]],
) -> dict[str, object]:
    """One line of the table."""
    patterns = zip(("table", "slot*"), widths, strict=True)
    rows = TablePolicy(policy, {name: None if n == 32 else n for name, n in patterns})
    written, touched = [], []
    with (
        tempfile.TemporaryDirectory() as folder,
        CheckpointManager(folder, keep=1, tables=rows) as manager,
    ):
        for interval in range(intervals + 1):
            seen = np.zeros(training.rows, np.bool_)
            while interval and seen.mean() < share:
                ids, labels = training.batch()
                seen[ids.numpy()] = True
                training.step(ids, labels)
            touched.append(float(seen.mean()))
            manager.save(interval, training.variables(), {})
            manager.wait()
            newest = manager.latest()
            assert newest is not None
            written.append(newest.manifest.data_bytes)
        kept = sum(c.manifest.data_bytes for c in manager.all())
        variables = training.variables()
        saved = {v.name: (np.array(v.view()), newest.read(v.name)) for v in variables}
    losses = []
    for i in (1, 0):  # what was restored first, so that the training goes on with what was saved
        for v in variables:
            v.assign(saved[v.name][i])
        before = float(np.mean([training.loss(*each) for each in test]))
        for batch in further:
            training.step(*batch)
        losses.append((before, float(np.mean([training.loss(*each) for each in test]))))
    (restored, restored_later), (exact, later) = losses
    full = sum(v.view().nbytes for v in training.variables())
    return {
        "policy": policy,
        "bits": widths[0],
        "slot bits": widths[1],
        "rows touched": statistics.mean(touched[1:]),
        "write ratio": full * intervals / sum(written[1:]),
        "capacity ratio": full / kept,
        "log loss": exact,
        "log loss change": restored / exact - 1,
        "log loss later": later,
        "log loss change later": restored_later / later - 1,
    }


def measure_marks(training: Training, rounds: int) -> dict[str, float]:
    """Processor time of steps with and without a record, in pairs of blocks of the same batches.

    The blocks of a pair are in random order. The upper bound is that of the mean of the shares, at
    97.5 %, without the tenth of the pairs that differ most in either direction.
    """
    batches = [training.batch() for _ in range(STEPS_PER_BLOCK)]
    shares, without = [], []
    for batch in batches:
        training.step(*batch)
    for _ in range(rounds):
        times = {}
        for marked in training.rng.permutation([False, True]):
            changed = ops.ChangedRows([training.table, *training.slots])
            changed.take().keep()  # in both cases, because the copy evicts the caches
            if not marked:
                changed.close()
            training.step(*batches[0])
            start = time.process_time()
            for batch in batches:
                training.step(*batch)
            times[bool(marked)] = time.process_time() - start
            changed.close()
        without.append(times[False] / STEPS_PER_BLOCK)
        shares.append(times[True] / times[False] - 1)
    cut = rounds // 10
    inner = sorted(shares)[cut : rounds - cut]
    # The variance of a trimmed mean (Tukey and McLaughlin, 1963).
    winsorized = np.clip(shares, inner[0], inner[-1])
    error = float(np.std(winsorized, ddof=1)) * rounds**0.5 / len(inner)
    mean = statistics.mean(inner)
    return {
        "pairs": rounds,
        "step ms": 1e3 * statistics.median(without),
        "mark share": mean,
        "mark share, upper bound": mean + 1.96 * error,
    }


def markdown(found: dict[str, Any]) -> str:
    """The section of docs/checkpoints.md.

    Args:
        found: what `main` has measured.
    """
    rows, units = found["rows"], found["units"]
    touched = statistics.mean(line["rows touched"] for line in found["policies"])
    lines = [
        f"On average {touched:.0%} of {rows:,} rows of {units} weights, with their accumulators, "
        "changed in an interval.",
        "",
        "| policy | bits | of slots | written | kept | log loss, restored | log loss, later |",
        "|---|---|---|---|---|---|---|",
    ]
    for each in found["policies"]:
        now, later = each["log loss change"], each["log loss change later"]
        lines.append(
            f"| {each['policy']} | {each['bits']} | {each['slot bits']} | "
            f"{each['write ratio']:.1f} × less | {each['capacity ratio']:.2f} × less | "
            f"{now:+.4%} | {later:+.4%} |"
        )
    marks = found["marks"]
    lines += [
        "",
        f"Marking the changed rows takes {marks['mark share']:.1%} of the processor time of a step "
        f"(upper bound {marks['mark share, upper bound']:.1%}, {marks['pairs']} pairs of "
        f"{STEPS_PER_BLOCK} steps of {marks['step ms']:.1f} ms with and without marks; this model "
        "has no layers behind its table).",
        "",
        tables.machine(found["machine"]),
    ]
    return "\n".join(lines)


def main() -> None:
    """Prints the measurements."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1 << 18, help="rows of the table")
    parser.add_argument("--units", type=int, default=32, help="width of the table")
    parser.add_argument("--zipf", type=float, default=1.05, help="exponent of the traffic")
    parser.add_argument("--share", type=float, default=0.1, help="rows touched in an interval")
    parser.add_argument("--intervals", type=int, default=8, help="checkpoints after the first")
    parser.add_argument("--rounds", type=int, default=60, help="pairs with and without marks")
    parser.add_argument("--warm-up", type=int, default=300, help="steps before the checkpoints")
    parser.add_argument("--more-steps", type=int, default=50, help="after a checkpoint is restored")
    parser.add_argument("--test-batches", type=int, default=100, help="of the log loss")
    parser.add_argument("--json", type=Path, help="file for the results")
    parser.add_argument("--page", type=Path, help="guide that gets the table")
    options = parser.parse_args()
    training = Training(options.rows, options.units, options.zipf, seed=1)
    test = [training.batch() for _ in range(options.test_batches)]
    further = [training.batch() for _ in range(options.more_steps)]
    # With a model of its own, because it repeats its batches.
    other = Training(options.rows, options.units, options.zipf, seed=2)
    marks = measure_marks(other, options.rounds)
    print(json.dumps(marks), flush=True)
    for _ in range(options.warm_up):
        training.step(*training.batch())
    lines = []
    for policy in POLICIES:
        for widths in WIDTHS:
            arguments = options.intervals, options.share, test, further
            lines.append(measure_policy(training, policy, widths, *arguments))
            print(json.dumps(lines[-1]), flush=True)
    command = machine.command_line("benchmarks.checkpoints")
    found = {
        "machine": machine.describe(command),
        "rows": options.rows,
        "units": options.units,
        "marks": marks,
        "policies": lines,
    }
    sections = {"policies": markdown(found)}
    tables.record(found, options.json, options.page, sections, "benchmarks/checkpoints.py")


if __name__ == "__main__":
    main()
