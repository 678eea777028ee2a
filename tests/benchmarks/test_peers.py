import json

import pytest

from benchmarks import peers
from tests.peers.jobs import needs_mpi

pytestmark = needs_mpi
LIMIT = ["--ranks", "2", "--timeout", "120"]  # seconds; only ranks that hang need as much


@pytest.mark.parametrize("transport", ["shared", "tcp"])
def test_tears_counts_the_messages_of_all_ranks_and_finds_none_that_is_bad(transport, capfd):
    peers.main(["tears", *LIMIT, "--messages", "500", "--transport", transport])
    found = json.loads(capfd.readouterr().out)
    assert found["bad"] == 0
    assert found["gathered"] >= 500
    # A message is gathered, overwritten, or still in its slot.
    waiting = found["scattered"] - found["gathered"] - found["overwritten"]
    assert 0 <= waiting <= 2 * 1000


def test_slow_trains_with_each_consistency(capfd):
    words = ["--milliseconds", "1", "--exchanges", "10", "--loss", "0.6"]
    peers.main(["slow", *LIMIT, *words])
    found = json.loads(capfd.readouterr().out)
    assert list(found) == ["bsp", "async", "ssp"]
    for each in found.values():
        assert each["loss"] < 0.6
        assert 0 < each["seconds_to_loss"] <= each["seconds"]


def test_a_job_that_fails_shows_its_output(capfd):
    with pytest.raises(SystemExit):
        peers.main(["slow", *LIMIT, "--exchanges", "1", "--rate", "high"])
    assert "invalid float value" in capfd.readouterr().err
