"""Training on a random share of the negative examples."""

import numpy as np
import pytest

from twml_ops.data import Schema, open_source, sample_negatives

ROWS = 2000


@pytest.fixture
def source(text_file):
    rng = np.random.default_rng(0)
    lines = [f"{int(rng.random() < 0.3)} {row + 1}:1" for row in range(ROWS)]
    return open_source(f"libsvm:{text_file(chr(10).join(lines) + chr(10))}")


def examples(source):
    found = []
    for block in source.blocks():
        found += zip(block.labels.tolist(), block.groups["sparse"].ids.tolist(), strict=True)
    return found


def test_all_positives_and_a_share_of_the_negatives_remain_in_order(source):
    whole, sampled = examples(source), examples(sample_negatives(source, 0.25))
    assert sampled == sorted(sampled, key=lambda e: e[1])
    assert [e for e in sampled if e[0]] == [e for e in whole if e[0]]
    negatives = [e for e in sampled if not e[0]]
    assert set(negatives) < set(whole)
    assert len(negatives) / sum(not e[0] for e in whole) == pytest.approx(0.25, abs=0.05)


def test_a_rate_of_1_keeps_all(source):
    assert examples(sample_negatives(source, 1.0)) == examples(source)


def test_the_seed_gives_the_examples(source):
    draws = [examples(sample_negatives(source, 0.5, seed)) for seed in (0, 0, 1)]
    assert draws[0] == draws[1]
    assert draws[0] != draws[2]


@pytest.mark.parametrize("rate", [0.0, -1.0, 1.5, float("nan")])
def test_a_rate_out_of_range_is_an_error(source, rate):
    with pytest.raises(ValueError, match="rate must be greater than 0 and at most 1"):
        sample_negatives(source, rate)


def test_several_labels_are_an_error(text_file):
    path = text_file("a,b,x\n1,0,3\n0,1,2\n", "a.csv")
    schema = Schema(("x",), (), 0, "", labels=("a", "b"))
    with pytest.raises(ValueError, match="expected one label, got a, b"):
        sample_negatives(open_source(f"csv:{path}", schema=schema), 0.5)
