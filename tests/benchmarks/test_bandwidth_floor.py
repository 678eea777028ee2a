import numpy as np
import pytest

from benchmarks.bandwidth_floor import Bandwidth, BandwidthProbe, forward_seconds, step_seconds
from benchmarks.timing import interleave
from benchmarks.workload import Batch

BATCH = Batch(np.zeros(10, np.int64), np.zeros(10, np.float32), np.array([0, 10]), unique=3)
ENTRIES = 10 * 8 + 10 * 4 + 2 * 8


def test_the_floor_counts_every_byte_that_must_move():
    one = Bandwidth(read=1.0, update=1.0)
    forward = ENTRIES + 3 * 32 * 4 + 1 * 32 * 4
    assert forward_seconds(BATCH, 32, one) == forward
    for rule, floats in {"sgd": 32, "adagrad": 64, "rowwise_adagrad": 33, "lazy_adam": 96}.items():
        backward = ENTRIES + 1 * 32 * 4 + 2 * 3 * floats * 4
        assert step_seconds(BATCH, 32, rule, one) == forward + backward


def test_rows_have_a_bandwidth_of_their_own_and_the_rest_is_a_stream():
    stream, rows = Bandwidth(read=1.0, update=1.0), Bandwidth(read=0.5, update=0.25)
    forward = ENTRIES + 2 * 3 * 32 * 4 + 1 * 32 * 4
    assert forward_seconds(BATCH, 32, stream, rows) == forward
    backward = ENTRIES + 1 * 32 * 4 + 4 * 2 * 3 * 64 * 4
    assert step_seconds(BATCH, 32, "adagrad", stream, rows) == forward + backward


def test_the_probe_converts_times_to_bandwidths():
    probe = BandwidthProbe(threads=2, megabytes=4)
    assert probe.bytes == 4 * 2**20
    times = interleave(probe.runs(), [0], rounds=1)
    assert len(times) == 2
    bandwidth = probe.bandwidth(read_seconds=0.5, update_seconds=0.25)
    assert bandwidth == Bandwidth(read=pytest.approx(2**23), update=pytest.approx(2**25))
