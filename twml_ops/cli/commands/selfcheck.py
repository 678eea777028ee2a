"""`twml-ops selfcheck`: does this installation work, and with what?"""

from __future__ import annotations

from typing import Annotated

import typer

from twml_ops.cli.commands.options import Debug


def selfcheck(
    require_library: Annotated[
        bool, typer.Option("--require-library", help="Fail without the op library.")
    ] = False,
    debug: Debug = False,
) -> None:
    """Shows what is installed and whether it works; as `python -m twml_ops.selfcheck`.

    Python's -m prefers the folder twml_ops of a checkout to the installed one; this does not.
    """
    from twml_ops import selfcheck

    if status := selfcheck.main(["--require-library"] if require_library else []):
        raise SystemExit(status)
