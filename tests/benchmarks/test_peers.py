import json

import pytest

from benchmarks.distributed.network import unavailable
from benchmarks.peers import __main__ as peers
from benchmarks.peers import experiments, job, svm, ways
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


@pytest.mark.parametrize("what", ["weights", "gradients"])
def test_ranks_that_wait_reach_a_lower_loss_than_at_the_start(what):
    setting = {"epochs": 1, "every": 100, "what": what, "examples": 1000}
    curves = job.run("svm", setting, 2)
    assert curves[0]["examples"] == curves[1]["examples"] == [100, 200, 300, 400, 500]
    assert curves[0]["loss"] == curves[1]["loss"]
    assert curves[0]["loss"][-1] < curves[0]["loss"][0]
    assert svm.reached(curves[0], curves[0]["loss"][-1])[0] <= 500
    assert svm.reached(curves[0], 0) is None


def test_a_job_that_fails_shows_its_output():
    with pytest.raises(job.JobError, match="ZeroDivisionError"):
        job.run("svm", {"epochs": 1, "every": 0, "examples": 10}, 1)


@pytest.mark.skipif(unavailable() is not None, reason="network namespaces cannot be created")
def test_halton_sends_its_share_of_all():
    found = experiments.traffic(lambda _: None, (4,))
    assert found["bytes"]["4"]["halton"] / found["bytes"]["4"]["all"] == pytest.approx(
        2 / 3, rel=0.05
    )


CURVE = {"examples": [500, 20_000], "seconds": [1.0, 2.0], "loss": [0.7, 0.6]}


def test_tables_say_what_was_not_reached_or_measured():
    names = ["ranks: 1", "ranks: 2", "slow: weights, bsp", "slow: weights, async"]
    learning = {"target": 0.6, "curves": {n: dict(CURVE) for n in names}}
    learning["curves"]["slow: weights, async"]["loss"] = [0.7, 0.65]
    page = experiments.learning_page(learning)
    assert "| 2 | – | – | 0.6000 | – | 20,000 | 2.00 | 1.00 × |" in page
    assert "| weights, async | – | – | 0.6500 | – | not reached | – | – |" in page
    assert "not measured: no root" in experiments.traffic_page({"unavailable": "no root"})
    assert "not measured: no root" in ways.page({"unavailable": "no root"})


def test_the_time_to_a_loss_lies_between_two_evaluations():
    curve = {"seconds": [1.0, 2.0, 3.0], "loss": [0.7, 0.6, 0.65]}
    assert ways.reached(curve, 0.7) == 1
    assert ways.reached(curve, 0.625) == pytest.approx(1.75)
    assert ways.reached(curve, 0.5) is None


def test_the_tables_of_the_ways_compare_peers_with_the_plan():
    curve = {"seconds": [1.0, 2.0], "loss": [0.65, 0.6]}
    curves = {"one rank": {"–": curve}, "2 servers, 2 workers": {"none": curve}}
    for every in ways.EVERY:
        curves[f"2 peers, every {every} batches"] = {"none": curve, "10": curve}
    page = ways.page({"target": 0.6, "curves": curves, "batches": 96, "share": 0.225})
    assert "| 2 servers, 2 workers | none | 44 | 0.6000 | 2.00 | 1.00 × |" in page
    assert page.count("| 10 | 88 |") == len(ways.EVERY)
