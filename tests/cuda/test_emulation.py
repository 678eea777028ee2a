"""The emulation of CUDA finds what is undefined or depends on the order of threads."""

import subprocess

import pytest

from tests.cuda import build

IN = [i * i + 1 for i in range(64)]


@pytest.fixture(scope="module")
def run():
    if not build.has_compiler():
        pytest.skip("the emulation needs a C++ compiler")
    program = build.emulation_program()

    def run(name, seed=1):
        return subprocess.run(
            [program, name, str(seed)], capture_output=True, text=True, check=False
        )

    return run


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_barriers_and_shuffles_do_not_depend_on_the_order(run, seed):
    out = [int(x) for x in run("barrier", seed).stdout.split()]
    assert out == [IN[i] + IN[(i + 32) % 64] for i in range(64)]
    out = [int(x) for x in run("sum_of_warp", seed).stdout.split()]
    assert out == [sum(IN[:32])] * 32 + [sum(IN[32:])] * 32


def test_without_a_barrier_the_result_depends_on_the_order(run):
    assert len({run("no_barrier", seed).stdout for seed in range(5)}) > 1


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("return_before_barrier", "a thread returned while others wait in __syncthreads"),
        ("return_before_shuffle", "a mask names a lane that has returned"),
        ("outside_of_own_mask", "a lane is not in its own mask"),
        ("read_outside_of_mask", "a shuffle reads a lane outside of its mask"),
        ("different_masks", "a mask names a lane that has returned"),
        ("barrier_and_shuffle", "all threads wait forever"),
    ],
)
def test_what_is_undefined_ends_the_process(run, name, message):
    done = run(name)
    assert done.returncode != 0
    # A thread that returns first meets the barrier of the others in either order.
    alternatives = {"return_before_barrier": "__syncthreads after a thread has returned"}
    assert message in done.stderr or alternatives.get(name, message) in done.stderr, done.stderr
