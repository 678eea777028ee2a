"""The command line, `twml-ops`. `twml-ops --help` lists its commands."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def prepare_imports() -> None:
    """Makes TensorFlow quiet and cheap: it loads no packages that commands do not need."""
    # Not imported above: Ctrl-C before `main` runs is reported by Python, with a stack.
    from twml_ops import _startup_log, _tensorflow_import

    _startup_log.quiet()  # users of a command do not need TensorFlow's log
    _tensorflow_import.defer()
    _tensorflow_import.spare_imports()
    _tensorflow_import.prepare()


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs one command and exits.

    Args:
        arguments: arguments of the command; None: the arguments of the process.

    Raises:
        SystemExit: the command failed, or its output could not be written; with status 2 for
            wrong usage, 130 for an interrupt, and 1 otherwise. One line on stderr says why, unless
            a check such as `tpu-check` has printed its negative result.
    """
    try:
        from twml_ops.cli import errors, standard_streams

        with standard_streams.tolerated() as streams:
            _run(list(sys.argv[1:] if arguments is None else arguments))
            streams.check()
    except (Exception, KeyboardInterrupt) as e:
        from twml_ops.cli import errors  # an interrupt may have come before the first import

        errors.report(e)


def _run(arguments: list[str]) -> None:
    """Runs one command."""
    prepare_imports()
    from twml_ops._terminal import plain_help

    with plain_help():  # Typer looks at its environment when it is imported
        from twml_ops.cli import app, errors

        errors.reset_debug()
        with errors.data_warnings():
            code = app.app(arguments, standalone_mode=False)
    if code == errors.INTERRUPTED:  # Typer returns a status on Ctrl-C
        raise KeyboardInterrupt
    if isinstance(code, int) and code:  # a check with a negative result
        raise SystemExit(code)
