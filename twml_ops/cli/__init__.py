"""The command line, `twml-ops`. `twml-ops --help` lists its commands."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from twml_ops import _deferred_imports, _garbage_collection, _startup_log
from twml_ops._terminal import is_terminal


def prepare_imports() -> None:
    """Makes TensorFlow's import quiet and quick, without what no command needs."""
    _startup_log.quiet()  # users of a command do not need TensorFlow's log
    _deferred_imports.defer()
    _garbage_collection.spare_imports()


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs one command and exits.

    Args:
        arguments: arguments of the command; None: the arguments of the process.

    Raises:
        SystemExit: the command failed; with status 2 for wrong usage, 130 for an interrupt, and 1
            otherwise. One line on stderr says why, unless a check such as `tpu-check` has printed
            its negative result.
    """
    prepare_imports()
    if not (is_terminal(sys.stdout) and is_terminal(sys.stderr)):
        os.environ["_TYPER_FORCE_DISABLE_TERMINAL"] = "1"  # of help and of wrong usage
    from twml_ops.cli import app, errors

    errors.reset_debug()
    errors.show_data_warnings()
    try:
        given = list(sys.argv[1:] if arguments is None else arguments)
        code = app.app(given, standalone_mode=False)
    except (Exception, KeyboardInterrupt) as e:
        errors.report(e)
    if code == errors.INTERRUPTED:  # Typer returns a status on Ctrl-C
        errors.report(KeyboardInterrupt())
    if isinstance(code, int) and code:  # a check with a negative result
        raise SystemExit(code)
