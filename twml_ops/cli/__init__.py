"""The command line: `twml-ops train | evaluate | predict | …`; `twml-ops --help` names all."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from twml_ops import _startup_log


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs one command and exits.

    Args:
        arguments: default: those of the process.

    Raises:
        SystemExit: only for a failure: 2 for wrong usage, 130 when interrupted, else 1; one line
            on stderr says why, unless the command itself has printed that the answer is no.
    """
    _startup_log.quiet()  # TensorFlow's log is not for the users of a command
    from twml_ops.cli import app, errors

    try:
        given = list(sys.argv[1:] if arguments is None else arguments)
        code = app.app(given, standalone_mode=False)
    except (Exception, KeyboardInterrupt) as e:
        errors.report(e)
    if code == errors.INTERRUPTED:  # Typer returns what Ctrl-C would have raised
        errors.report(KeyboardInterrupt())
    if isinstance(code, int) and code:  # of a command whose answer is no
        raise SystemExit(code)
