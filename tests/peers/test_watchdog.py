import threading

from twml_ops.peers.watchdog import Watchdog


def test_a_block_that_takes_too_long_is_reported_once_with_its_name():
    expired, found = threading.Event(), []

    def report(message, leave):
        found.append((message, leave))
        expired.set()

    watchdog = Watchdog("rank 3", report)
    with watchdog.limit(1e-3, "a flush", leave=False):
        expired.wait()
    assert found == [("[rank 3] a flush took longer than 0.001 s", False)]


def test_blocks_that_end_in_time_are_not_reported():
    found = []
    watchdog = Watchdog("rank 0", lambda *args: found.append(args))
    for _ in range(3):
        with watchdog.limit(600, "outer"), watchdog.limit(300, "inner"):
            pass
    watchdog.close()
    assert found == []
