"""Request loop of a host's process: one line of JSON per request and per answer.

`process.HostProcess` is the other end.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any

from twml_ops.cli.errors import message_of


def serve(handle: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Answers each line of the standard input until it ends.

    Args:
        handle: computes the answer to a request. If it raises, the answer is {"error": message}.
    """
    send = _open_answer_channel()
    for line in sys.stdin:
        try:
            send(handle(json.loads(line)))
        except Exception as e:
            traceback.print_exc()
            send({"error": f"{type(e).__name__}: {message_of(ValueError(str(e)))}"})


def _open_answer_channel() -> Callable[[dict[str, Any]], None]:
    """Reserves the standard output for answers; other prints go to the standard error."""
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    return lambda answer: print(json.dumps(answer), file=out, flush=True)
