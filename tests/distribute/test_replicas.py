"""`distribute.mirrored_strategy`."""

import pytest

from twml_ops import distribute


def test_there_is_one_replica_for_each_device():
    assert distribute.mirrored_strategy(3).num_replicas_in_sync == 3
    assert distribute.mirrored_strategy(["CPU:1"]).num_replicas_in_sync == 1
    assert distribute.mirrored_strategy().num_replicas_in_sync >= 1


def test_unavailable_devices_are_rejected():
    with pytest.raises(ValueError, match="at least one device"):
        distribute.mirrored_strategy([])
    with pytest.raises(ValueError, match="at least 1 logical CPU, got 0"):
        distribute.mirrored_strategy(0)
    with pytest.raises(ValueError, match="runs with 4 logical CPU"):
        distribute.mirrored_strategy(9)
