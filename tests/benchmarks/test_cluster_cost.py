import shutil

import pytest

from benchmarks.cluster_cost import __main__ as cluster_cost
from benchmarks.cluster_cost import parts, perf

KERNEL = "[kernel.kallsyms]:futex_wake"
POOL = ("libtensorflow_framework.so.2:_ZN5Eigen15ThreadPoolTempl10WorkerLoopEi", "libc.so.6:clone3")


@pytest.mark.parametrize(
    ("stack", "part"),
    [
        (("libc.so.6:__memmove_avx512_unaligned", "_twml_ops.tf2.21.so:f"), parts.COPIES),
        ((KERNEL, "_twml_ops.tf2.21.so:_ZN4twml3SumE", *POOL), "kernels of twml_ops"),
        (
            (KERNEL, "libtensorflow_framework.so.2:_ZN9grpc_core3RunE"),
            "gRPC and tensors on the wire",
        ),
        (
            (KERNEL, "_twml_ops.tf2.21.so:_ZN4twml12_GLOBAL__N_17ReadAllEiPvl", *POOL),
            "gRPC and tensors on the wire",
        ),
        ((KERNEL, *POOL), parts.IDLE),
        (("libpython3.11.so.1.0:_PyEval_EvalFrameDefault",), "Python"),
        ((), parts.OTHER),
    ],
)
def test_the_innermost_known_function_decides_to_which_part_a_stack_belongs(stack, part):
    assert parts.part_of(stack) == part


def test_the_shares_of_the_parts_add_up_to_one():
    shares = parts.by_part({("libc:memcpy",): 3, (KERNEL, *POOL): 1})
    assert shares == {parts.COPIES: 0.75, parts.IDLE: 0.25}
    assert parts.by_part({}) == {}


def test_the_output_of_perf_is_read_as_stacks_with_the_innermost_function_first():
    text = "\n".join(
        ["  12 ", "\t7f01 f(int) (/usr/lib/a.so)", "\t7f02 [unknown] (/usr/lib/b.so)", "", "13", ""]
    )
    assert list(perf.parse(text)) == [(12, ("a.so:f(int)", "b.so:[unknown]")), (13, ())]


def test_the_table_has_the_sums_of_worker_and_servers():
    measured = {"total": 0.2, "kernel": 0.1, "parts": {"Python": 0.2}}
    alone = cluster_cost.medians([{"process": measured}], 100)
    cluster = cluster_cost.medians([{"worker": measured, "server 0": measured}], 100)
    in_worker = cluster_cost.medians([{"worker": measured}], 100)
    kinds = cluster_cost.ALONE, cluster_cost.CLUSTER, cluster_cost.IN_WORKER
    text = cluster_cost.table("flights", dict(zip(kinds, (alone, cluster, in_worker), strict=True)))
    assert "| Python | 2.00 | 2.00 | 2.00 | 4.00 | 2.00 |" in text


def test_ratios_compare_the_measurements_of_the_same_round():
    def runs(*totals):
        return [{"worker": {"total": t, "kernel": 0.0, "parts": {}}} for t in totals]

    kinds = cluster_cost.ALONE, cluster_cost.CLUSTER, cluster_cost.IN_WORKER
    found = runs(1.0, 2.0, 4.0), runs(1.5, 4.0, 7.0), runs(1.0, 2.0, 4.0)
    text = cluster_cost.ratios(dict(zip(kinds, found, strict=True)))
    assert "1.75 × (1.50 to 2.00)" in text
    assert "1.00 × (1.00 to 1.00)" in text


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("perf") is None, reason="perf is not installed")
def test_a_cluster_is_measured():
    for in_worker, names in ((False, {"worker", "server 0", "server 1"}), (True, {"worker"})):
        options = {"partition_axis": "row", "steps_per_execution": 2}
        found = cluster_cost.measure_cluster("reference", 6, in_worker, **options)
        assert set(found) == names
        assert all(m["total"] > 0 for m in found.values())
