"""`distribute.mirrored`."""

import pytest

from twml_ops import distribute


def test_a_replica_for_each_device():
    assert distribute.mirrored(3).num_replicas_in_sync == 3
    assert distribute.mirrored(["CPU:1"]).num_replicas_in_sync == 1
    assert distribute.mirrored().num_replicas_in_sync >= 1


def test_devices_that_cannot_be_had_are_refused():
    with pytest.raises(ValueError, match="at least one device"):
        distribute.mirrored([])
    with pytest.raises(ValueError, match="at least 1 logical CPU, got 0"):
        distribute.mirrored(0)
    with pytest.raises(ValueError, match="runs with 4 logical CPU"):
        distribute.mirrored(9)
