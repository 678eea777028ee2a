"""The parts of a step to which the benchmark assigns CPU time."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping

from benchmarks.cluster_cost.perf import Stack

# Functions of thread pools and of the beginning of threads. A stack that has no others belongs to a
# thread that waits for work, looks for it or wakes up.
_POOL = re.compile(
    r"ThreadPool|EventCount|RunQueue|WaitForWork|UnboundedWorkQueue|EigenEnvironment|7PThread"
    r"|start_thread|clone3|ThreadInternalsPosix|internal_any_invocable|pthread_cond|futex"
)
IDLE = "threads that wait or look for work"

# Part -> the functions, as "library:mangled name", whose time belongs to it. The innermost function
# of a stack that belongs to a part decides. The first part of several is meant.
PARTS = {
    "kernels of twml_ops": r"_twml_ops(?!.*(?:Message|ReadAll|WriteAll))",
    "input pipeline": r"10tensorflow4data",
    "gRPC and tensors on the wire": (
        r"twml.*(?:Message|ReadAll|WriteAll)|grpc|Grpc|RecvTensor|8protobuf|tensor_coding|TensorResponse|Rendezvous|gpr_|upb_|chttp2"
    ),
    "remote functions": (
        r"EagerService|RemoteExecute|EagerCluster|RunComponentFunction|ClusterFunctionLibrary"
        r"|RemoteManager|RemoteTensorHandle|eager17|5eager"
    ),
    "function calls": (
        r"ProcessFunctionLibraryRuntime|FunctionLibraryRuntimeImpl|KernelAndDevice|EagerKernel"
        r"|EagerExecut|EagerContext|EagerOperation|TensorHandle|TFE_|StepContainer|StepStats"
    ),
    "other kernels": r"OpKernel|5Eigen|Op7ComputeE|dnnl|mkl|functor",
    "executors": r"Executor|PropagatorState|PendingCounts|NodeItem|CancellationManager",
    "Python": r"python|:_?Py|pybind|_pywrap",
}
COPIES = "copies"
OTHER = "other"
_RULES = {part: re.compile(rule) for part, rule in PARTS.items()}
_COPY = re.compile(r"mem(cpy|move)")


def part_of(stack: Stack) -> str:
    """The part to which a stack belongs.

    Args:
        stack: names of functions, the innermost first.
    """
    outside = [function for function in stack if not function.startswith("[kernel")]
    if outside and _COPY.search(outside[0]):
        return COPIES
    tasks = [function for function in outside if not _POOL.search(function)]
    for function in tasks:
        for part, rule in _RULES.items():
            if rule.search(function):
                return part
    return IDLE if len(tasks) < len(outside) else OTHER


def by_part(stacks: Mapping[Stack, int]) -> dict[str, float]:
    """The share of each part in the samples.

    Args:
        stacks: number of samples of each stack.
    """
    counts: Counter[str] = Counter()
    for stack, count in stacks.items():
        counts[part_of(stack)] += count
    total = sum(counts.values()) or 1
    return {part: counts[part] / total for part in (*PARTS, COPIES, IDLE, OTHER) if counts[part]}
