"""A rank of a measurement; `job` starts it with a part, its setting and a folder for the result."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

from twml_ops import peers

PARTS = ("tears", "svm", "traffic", "clicks", "mirrored")
"""Modules of this package with a function `measure(group, setting)`."""


def main(part: str, setting: str, folder: str) -> None:
    """Measures, and writes the result of this rank."""
    module = importlib.import_module(f"benchmarks.peers.{part}")
    with_group = peers.PeerGroup(timeout=300)
    result = module.measure(with_group, json.loads(setting))
    Path(folder, f"{with_group.rank}.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main(*sys.argv[1:])
