"""Parameter servers and a worker in one process. The tests are in *_child_tests.py."""

import pytest

from tests.child_process import ChildProcess
from tests.distribute.parameter_server.child import child_test
from tests.pairwise import on_both

# What depends on TensorFlow's remote calls, graphs and checkpoints; the rest is arithmetic of ours.
ON_BOTH = (
    "training_by_column_equals_a_single_process_and_tables_are_bit_identical",
    "the_tables_of_fields_are_those_of_a_single_process",
    "layers_before_a_table_get_gradients",
    "a_run_goes_on_with_the_tables_and_slots_of_an_ordinary_model_and_gives_them_back",
    "numbers_of_steps_are_the_recorded_ones",
    "a_checkpoint_is_restored_on_another_number_of_servers_and_the_other_axis",
    "several_steps_of_a_call_are_the_same_steps",
    "each_way_with_each_optimizer_equals_a_single_process",
    "a_checkpoint_of_a_plan_is_restored_with_another_plan_on_other_servers",
    "iter_checkpoints_yields_each_checkpoint_as_an_ordinary_model",
    "several_tables_may_be_sent_in_16_bits_and_ahead",
    "gradients_are_clipped_by_the_norms_of_a_single_process",
    "one_server_with_rows_in_a_file_trains_as_one_process",
    "checkpoints_are_the_same_whether_rows_are_in_files_or_in_memory",
    "frozen_tables_on_servers_keep_their_values_as_in_a_single_process",
    "towers_on_servers_train_as_in_a_single_process",
    "tensorflow_sends_the_same_numbers_where_no_port_can_be_reached",
)
SLOW = (
    "frozen_tables_have_no_slots_in_checkpoints_and_in_runs_that_go_on",
    "micro_batches_have_the_same_bits_in_each_plan_with_each_optimizer",
    "a_checkpoint_of_micro_batches_is_continued_by_another_cluster_with_the_same_bits",
)


@pytest.fixture(scope="module")
def child():
    with ChildProcess(["-m", "tests.distribute.parameter_server.child"]) as child:
        yield child


def test_the_cases_of_both_versions_are_there():
    assert {*ON_BOTH, *SLOW} <= set(child_test)


@pytest.mark.parametrize(
    "name",
    [
        *on_both([name for name in child_test if name not in SLOW], *ON_BOTH),
        *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW),
    ],
)
def test_one_process(child, name):
    child.request(name)
