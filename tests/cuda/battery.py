"""Checks laws in a process of its own, for libraries that may crash or hang.

    python -m tests.cuda.battery LIBRARY REFERENCE --set quick

It writes a line of JSON before and after each law. The process succeeds if no law is broken.
"""

import argparse
import json
import sys
import time
import traceback
from pathlib import Path

from tests.cuda import laws
from tests.cuda.cpu_kernels import Reference
from tests.cuda.library import CudaLibrary

SETS = {"battery": laws.BATTERY, "quick": laws.QUICK, "all": laws.ALL}


def check(lab: laws.Lab, law: laws.Law) -> bool:
    """Checks a law, writes the result and returns whether it holds."""
    print(json.dumps({"start": law.name}), flush=True)
    begin, why = time.perf_counter(), None
    try:
        law.check(lab, **law.options)
    except Exception:  # any error means that the law is not shown to hold
        why = traceback.format_exc()
        print(why, file=sys.stderr, flush=True)
    seconds = round(time.perf_counter() - begin, 3)
    print(json.dumps({"done": law.name, "why": why, "seconds": seconds}), flush=True)
    return why is None


def main() -> int:
    """Checks the laws that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("library", type=Path, help="the CUDA library, or the emulated one")
    parser.add_argument("reference", type=Path, help="the library of the CPU's kernels")
    parser.add_argument("--set", choices=SETS, default="battery", help="which laws")
    parser.add_argument("--skip", type=int, default=0, help="how many of the first to leave out")
    parser.add_argument("--stop", action="store_true", help="end with the first broken law")
    arguments = parser.parse_args()
    lab = laws.Lab(CudaLibrary(arguments.library), Reference(arguments.reference))
    chosen = laws.laws(SETS[arguments.set], lab.cuda.is_emulated)[arguments.skip :]
    broken = 0
    for law in chosen:
        broken += not check(lab, law)
        if broken and arguments.stop:
            break
    return int(broken > 0)


if __name__ == "__main__":
    sys.exit(main())
