"""The folder of a run. It is created atomically: it is complete or it does not exist."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from twml_ops.cli.errors import UserError
from twml_ops.cli.render.json_output import to_json

RUN_FILE = "run.json"
METRICS_FILE = "metrics.json"
REPORT_FILE = "report.html"
MODEL_FILE = "model.keras"
SAVED_MODEL = "saved_model"
TENSORBOARD = "tensorboard"
SLOTS = "optimizer"
OUTPUT_NAME = "probability"  # in exports, whatever the last layer is called
FORMAT_KEY, FORMAT = "twml_ops_run", 1


def is_run(folder: Path) -> bool:
    """Whether `folder` is a finished run: run.json, the last file written, is valid."""
    try:
        return bool(json.loads((folder / RUN_FILE).read_text())[FORMAT_KEY] == FORMAT)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def read_run(folder: Path) -> dict[str, Any]:
    """The content of run.json of a finished run.

    Raises:
        UserError: `folder` is not a finished run.
    """
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder")
    if not is_run(folder):
        raise UserError(f"{folder}: not a finished run of twml-ops train (no valid {RUN_FILE})")
    run: dict[str, Any] = json.loads((folder / RUN_FILE).read_text())
    return run


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Writes strict JSON, NaN and infinity as null."""
    path.write_text(to_json(value) + "\n")


@contextlib.contextmanager
def new_folder(out: Path, overwrite: bool = False) -> Iterator[Path]:
    """A temporary folder beside `out`, renamed to `out` when the block succeeds.

    When the block fails, the temporary folder is deleted and `out` is unchanged. A process that is
    killed may leave a hidden folder `.NAME.partial-…`.

    Args:
        out: a path that does not exist, an empty folder, or with `overwrite` a finished run.
        overwrite: replace a finished run.

    Yields:
        The temporary folder.

    Raises:
        UserError: `out` holds anything else, or its parent cannot be written.
    """
    out = Path(os.path.abspath(out))
    occupied = os.path.lexists(out) and not (out.is_dir() and not any(out.iterdir()))
    if occupied:
        if not is_run(out):
            raise UserError(f"{out}: exists and is not a finished run; choose another --out")
        if not overwrite:
            raise UserError(f"{out}: holds a finished run; use --overwrite to replace it")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=f".{out.name}.partial-", dir=out.parent))
    except OSError as e:
        raise UserError(f"{out}: cannot be written: {e.strerror}") from e
    try:
        yield partial
        partial.chmod(0o777 & ~_umask())  # mkdtemp made it private
        _replace(partial, out)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


@contextlib.contextmanager
def new_file(out: Path) -> Iterator[Path]:
    """A temporary file beside `out`, which replaces `out` when the block succeeds.

    Args:
        out: path of the file; an existing file is replaced.

    Yields:
        The path of the temporary file.

    Raises:
        UserError: the file cannot be written.
    """
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{out.name}.partial-", dir=out.parent)
        os.close(handle)
    except OSError as e:
        raise UserError(f"{out}: cannot be written: {e.strerror}") from e
    partial = Path(name)
    try:
        yield partial
        partial.chmod(0o666 & ~_umask())
        partial.replace(out)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def _umask() -> int:
    umask = os.umask(0)
    os.umask(umask)
    return umask


def _replace(partial: Path, out: Path) -> None:
    """Renames `partial` to `out`. An old folder is deleted only after it has been replaced."""
    if not out.exists():
        partial.rename(out)
        return
    old = Path(tempfile.mkdtemp(prefix=f".{out.name}.old-", dir=out.parent))
    out.rename(old / out.name)
    try:
        partial.rename(out)
    except OSError:
        (old / out.name).rename(out)
        old.rmdir()
        raise
    shutil.rmtree(old, ignore_errors=True)
