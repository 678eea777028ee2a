"""`twml-ops plan --run`: from a finished run to a training that follows the plan of its tables."""

import json

import pytest

from tests.training.test_cluster_runner import chief
from twml_ops.cli import main
from twml_ops.planning import Table
from twml_ops.training.errors import UserError
from twml_ops.training.run_tables import tables_of_run
from twml_ops.training.trained_run import TrainedRun

pytestmark = pytest.mark.one_tf


def test_the_tables_are_those_of_the_model_with_the_entries_of_the_data(libsvm_run):
    found = tables_of_run(libsvm_run, None, 32)
    tables = {w.path.partition("/")[0]: w.shape for w in TrainedRun(libsvm_run).model.weights}
    assert found
    for name, table in found.items():
        assert (table.input_dim, table.units) == tuple(tables[name.partition("/")[0]])
        assert isinstance(table, Table)
        assert table.unique <= min(table.input_dim, 32 * table.entries)


def test_what_is_no_run_or_has_no_examples_is_named(libsvm_run, tmp_path):
    with pytest.raises(UserError, match=r"no run|run\.json"):
        tables_of_run(tmp_path, None, 32)
    data = tmp_path / "empty.libsvm"
    data.write_text("")
    with pytest.raises(ValueError, match="empty.libsvm"):
        tables_of_run(libsvm_run, f"libsvm:{data}", 32)


def test_fewer_examples_than_a_batch_have_too_few_distinct_ids_for_a_plan(libsvm_run):
    count = TrainedRun(libsvm_run).source(None).num_examples()
    assert tables_of_run(libsvm_run, None, count)
    with pytest.raises(UserError, match=f"has {count} examples, expected at least a batch of 512"):
        tables_of_run(libsvm_run, None, 512)


@pytest.mark.slow
def test_a_training_follows_the_plan_of_a_run(libsvm, tmp_path):
    first, plan = tmp_path / "first", tmp_path / "plan.json"
    train = ["--model", "sparse_mlp", "--epochs", "2"]
    main(["train", "--data", libsvm, *train, "--out", str(first)])
    cluster = ["--batch", "16", "--servers", "1", "--slots", "1"]
    main(["plan", "--run", str(first), *cluster, "--out-plan", str(plan)])
    tables = {table["name"]: table["way"] for table in json.loads(plan.read_text())["tables"]}
    status, output = chief(libsvm, tmp_path, "--config", str(first), "--plan", str(plan))
    assert status == 0, output[-3000:]
    facts = json.loads((tmp_path / "run" / "run.json").read_text())
    assert facts["cluster"]["plan"] == str(plan)
    assert tables
