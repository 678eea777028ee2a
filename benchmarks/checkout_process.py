"""Process that runs contenders with the package of a given checkout.

Started by benchmarks/compare_checkouts.py.
"""

from __future__ import annotations

import gc
import sys
from multiprocessing.connection import Connection
from pathlib import Path

THIS = Path(__file__).parents[1]


def main(checkout: str, channel: Connection, quick: bool) -> None:
    """Answers requests: a tuple prepares a contender, a number runs it on that batch."""
    sys.path[0] = checkout
    import twml_ops  # from the given checkout; all other modules are from this one

    if Path(twml_ops.__file__).parents[1] != Path(checkout):
        raise ImportError(f"twml_ops was imported from {twml_ops.__file__}, not from {checkout}")
    sys.path[0] = str(THIS)
    from benchmarks import machine
    from benchmarks.contenders.twml import CONTENDERS
    from benchmarks.run import QUICK
    from benchmarks.workload import Workload, make_case

    machine.limit_threads(2)
    workload = QUICK if quick else Workload()
    case, run, prepared_skew = None, None, None
    while True:
        try:
            request = channel.recv()
        except EOFError:
            return
        if isinstance(request, int):
            run(request)
        else:
            task, contender, skew = request
            run = None
            gc.collect()  # frees the tables of the last one
            if case is None or skew != prepared_skew:
                prepared_skew = skew
                case = make_case(workload, workload.replace(skew=skew).batches(8), threads=2)
            run = CONTENDERS[task][contender](case).run
        channel.send("done")


if __name__ == "__main__":
    main(sys.argv[1], Connection(int(sys.argv[2])), "--quick" in sys.argv)
