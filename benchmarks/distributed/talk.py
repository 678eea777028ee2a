"""The other end of `process.HostProcess`: what a host's process reads and says."""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any

from twml_ops.cli import errors


def serve(handle: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Answers every line of the standard input until it ends; errors are answers too."""
    say = _speaker()
    for line in sys.stdin:
        try:
            say(handle(json.loads(line)))
        except Exception as e:
            traceback.print_exc()
            say({"error": f"{type(e).__name__}: {errors.one_line(ValueError(str(e)))}"})


def _speaker() -> Callable[[dict[str, Any]], None]:
    """What others print must not get between the lines: they get the standard error."""
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    return lambda message: print(json.dumps(message), file=out, flush=True)
