"""`twml-ops selfcheck`: tests the installation."""

from __future__ import annotations

from typing import Annotated

import typer

from twml_ops.cli.options import Debug


def selfcheck(
    require_library: Annotated[
        bool, typer.Option("--require-library", help="Fail without the op library.")
    ] = False,
    debug: Debug = False,
) -> None:
    """Shows what is installed and tests whether it works, like `python -m twml_ops.selfcheck`.

    In a checkout, `python -m` imports the package from the current folder. This command always
    tests the installed package.
    """
    from twml_ops import selfcheck

    if status := selfcheck.main(["--require-library"] if require_library else []):
        raise SystemExit(status)
