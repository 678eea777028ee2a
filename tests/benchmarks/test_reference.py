import numpy as np
import pytest

from benchmarks.contender import RULES, PreparedContender
from benchmarks.reference import FIRST_STEPS, LEARNING_RATE, check
from benchmarks.workload import Workload, make_case

WORKLOAD = Workload(input_dim=50, units=5, batch_size=6, row_length=7)
CASE = make_case(WORKLOAD, WORKLOAD.batches(2), threads=1)


def dense(batch):
    x = np.zeros((batch.num_rows, 50))
    np.add.at(x, (batch.row_indices, batch.ids), batch.values)
    return x


def naive(rule, rate=LEARNING_RATE, changed_row=None):
    """A step with dense matrices, optionally with an error."""
    table = CASE.table.copy()

    def run(i):
        x = dense(CASE.batches[i])
        output = (x @ table).astype(np.float32)
        touched = np.any(x != 0, axis=0)
        table[touched] -= rate * FIRST_STEPS[rule](x.T @ CASE.grad_output)[touched]
        if changed_row is not None:
            table[changed_row] += 1e-6
        return output

    return PreparedContender(run, lambda: table)


@pytest.mark.parametrize("rule", RULES)
def test_a_correct_step_passes(rule):
    assert check(naive(rule), CASE, rule) == ""


@pytest.mark.parametrize("rule", RULES)
def test_a_wrong_update_is_found(rule):
    assert "wrong update" in check(naive(rule, rate=1.01 * LEARNING_RATE), CASE, rule)


def test_a_change_of_an_untouched_row_is_found():
    untouched = np.setdiff1d(np.arange(50), CASE.batches[0].ids)[0]
    wrong = check(naive("sgd", changed_row=untouched), CASE, "sgd")
    assert wrong == "1 untouched rows changed"


def test_a_wrong_output_is_found():
    assert "wrong output" in check(PreparedContender(lambda i: np.ones((6, 5))), CASE, None)
    assert "wrong output" in check(PreparedContender(lambda i: np.ones((5, 5))), CASE, None)
