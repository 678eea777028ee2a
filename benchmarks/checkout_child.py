"""Started by benchmarks/compare_checkouts.py: a contender with the package of a given checkout."""

from __future__ import annotations

import gc
import sys
from multiprocessing.connection import Connection
from pathlib import Path

THIS = Path(__file__).parents[1]


def main(checkout: str, channel: Connection, quick: bool) -> None:
    """Prepares the contender that a tuple names, and runs the batch that a number names."""
    sys.path[0] = checkout
    import twml_ops  # from that checkout; everything else is this one's

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
                case = make_case(workload, workload.with_(skew=skew).batches(8), threads=2)
            run = CONTENDERS[task][contender](case).run
        channel.send("done")


if __name__ == "__main__":
    main(sys.argv[1], Connection(int(sys.argv[2])), "--quick" in sys.argv)
