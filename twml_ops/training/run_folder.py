"""The folder of a run. It is created atomically: it is complete or it does not exist.

It does not import TensorFlow.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

from twml_ops import _publish
from twml_ops._scorer import PROGRAM_FILE
from twml_ops.training.config import FORMAT, FORMAT_KEY
from twml_ops.training.errors import UserError
from twml_ops.training.reporter import SILENT, Reporter

RUN_FILE = "run.json"
METRICS_FILE = "metrics.json"
REPORT_FILE = "report.html"
MODEL_FILE = "model.keras"
SAVED_MODEL = "saved_model"
TENSORBOARD = "tensorboard"
SLOTS = "optimizer"
OUTPUT_NAME = "probability"  # in exports, whatever the last layer is called
FILES_KEY = "files"
MOST_LEVELS = 32  # of a JSON file of a run, which has five


def is_run(folder: Path) -> bool:
    """Whether `folder` is a finished run: run.json, the last file written, is valid."""
    try:
        return bool(read_json(folder / RUN_FILE).get(FORMAT_KEY) == FORMAT)
    except UserError:
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
    return read_json(folder / RUN_FILE)


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file of a run.

    Raises:
        UserError: the file cannot be read or has no JSON object.
    """
    with damage_is_reported(path):
        value = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(value, dict):
            raise ValueError(f"expected an object, got {type(value).__name__}")
        _check_depth(value)
    return value


def _check_depth(value: Any) -> None:
    """Raises a `ValueError` for a value that could be read, but not written again."""
    level = [value]
    for _ in range(MOST_LEVELS):
        inside = (v.values() if isinstance(v, dict) else v for v in level)
        level = [v for values in inside for v in values if isinstance(v, (dict, list))]
        if not level:
            return
    raise ValueError(f"expected at most {MOST_LEVELS} levels of objects and lists, got more")


@contextlib.contextmanager
def damage_is_reported(path: Path) -> Iterator[None]:
    """Raises a `UserError` that names the file `path` if the block finds its content damaged."""
    try:
        yield
    except UserError:
        raise
    except KeyError as e:
        raise UserError(f"{path}: is damaged: there is no {e}") from e
    except OSError as e:
        raise UserError(f"{path}: cannot be read: {e.strerror}") from e
    except (ValueError, TypeError, AttributeError, IndexError, RecursionError) as e:
        raise UserError(f"{path}: is damaged: {e}") from e


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Writes strict JSON, NaN and infinity as null."""
    path.write_text(to_json(value) + "\n")


def written_files(folder: Path) -> Collection[str] | None:
    """The files that a finished run consists of, by relative path; None: it is no finished run."""
    if not is_run(folder):
        return None
    found = read_json(folder / RUN_FILE).get(FILES_KEY)
    known = {RUN_FILE, *map(str, found if isinstance(found, list) else ())}
    return [name for name in _publish.files_in(folder) if _stable(name) in known]


def _stable(name: str) -> str:
    """The name of a file without what differs when a run is repeated, as TensorBoard's times do."""
    return re.sub(r"(^|/)events\.out\.tfevents\.[^/]*$", r"\1events.out.tfevents.*", name)


@contextlib.contextmanager
def new_folder(
    out: Path, overwrite: bool = False, *, lock: bool = True, reporter: Reporter = SILENT
) -> Iterator[Path]:
    """A temporary folder, which becomes the run `out` when the block succeeds.

    Its run.json then lists its files: another run replaces these, and nothing else. When the block
    fails, `out` is unchanged; the temporary folder is kept if it has a trained model, and deleted
    otherwise.

    Args:
        out: a path that does not exist, an empty folder, or with `overwrite` a finished run.
        overwrite: replace a finished run.
        lock: whether another process is refused that has the same `out`.
        reporter: is told where a trained model is kept.

    Yields:
        The temporary folder.

    Raises:
        UserError: `out` holds anything else or is in use, or its parent cannot be written; or the
            folder cannot be published, and is kept.
    """
    with (
        _user_errors(),
        _publish.new_folder(
            out,
            overwrite,
            written=written_files,
            kind="a finished run",
            last=RUN_FILE,
            is_kept=lambda folder: (folder / MODEL_FILE).exists(),
            on_kept=lambda folder: _tell_kept(out, folder, reporter),
            lock=lock,
        ) as folder,
    ):
        yield folder
        files = sorted({_stable(name) for name in _publish.files_in(folder)})
        # Without the list the run could not be replaced, so a fault of reading is an error.
        if RUN_FILE in files:
            run = read_json(folder / RUN_FILE)
            if run.get(FORMAT_KEY) == FORMAT:
                write_json(folder / RUN_FILE, {**run, FILES_KEY: files})


@contextlib.contextmanager
def new_export(out: Path) -> Iterator[Path]:
    """A temporary folder, which becomes the new folder `out` when the block succeeds.

    Args:
        out: a path that does not exist, or an empty folder.

    Yields:
        The temporary folder.

    Raises:
        UserError: `out` holds anything or is in use, or its parent cannot be written.
    """
    with (
        _user_errors(replaces=False),
        _publish.new_folder(
            out, written=written_files, kind="a finished run", last=PROGRAM_FILE
        ) as folder,
    ):
        yield folder


@contextlib.contextmanager
def new_file(out: Path, overwrite: bool = False) -> Iterator[Path]:
    """A temporary file, which becomes `out` when the block succeeds; see `_publish.new_file`.

    Args:
        out: a path that does not exist, a FIFO, a character device, or with `overwrite` a regular
            file.
        overwrite: replace a regular file.

    Yields:
        The path of the temporary file.

    Raises:
        UserError: `out` is anything else or is in use, or cannot be written.
    """
    with _user_errors(), _publish.new_file(out, overwrite) as part:
        yield part


@contextlib.contextmanager
def optional_file(out: Path | None, overwrite: bool = False) -> Iterator[Path | None]:
    """Like `new_file`, but for a file that is written only if it has a name: None otherwise."""
    if out is None:
        yield None
    else:
        with new_file(out, overwrite) as part:
            yield part


def write_result(part: Path, out: Path, write: Callable[[Path], object]) -> None:
    """Writes a result; if its disk is full or fails, to the folder for temporary files.

    Args:
        part: where to write it, what `new_file` or `new_folder` gave or a file in that.
        out: what the user has named.
        write: writes the result to a path.

    Raises:
        UserError: it is only in the folder for temporary files, which the message names.
        OSError: it could not be written at all.
    """
    try:
        write(part)
    except OSError as e:
        kept = Path(tempfile.mkdtemp(prefix="twml-ops-")) / out.name
        try:
            write(kept)
        except OSError:
            shutil.rmtree(kept.parent, ignore_errors=True)
            raise e from None
        with contextlib.suppress(OSError):  # takes no space; new_folder keeps a model that is there
            if part.name == MODEL_FILE:
                part.symlink_to(kept)
        reason = e.strerror or e
        raise UserError(f"{out}: cannot be written: {reason}; the result is kept in {kept}") from e


@contextlib.contextmanager
def _user_errors(replaces: bool = True) -> Iterator[None]:
    try:
        yield
    except _publish.TargetError as e:
        advice = "" if e.kept else "; choose another --out" if replaces else "; choose another OUT"
        if e.replaceable and replaces:
            advice = "; use --overwrite to replace it, or choose another --out"
        raise UserError(f"{e}{advice}") from e


def _tell_kept(out: Path, folder: Path, reporter: Reporter) -> None:
    reporter.failure(
        f"{out} is not finished. The trained model is kept: {folder / MODEL_FILE}; "
        "tf.keras.models.load_model reads it after `import twml_ops`"
    )


def to_finite(value: Any) -> Any:
    """`value` with None in place of each NaN and infinity, at any depth."""
    if isinstance(value, dict):
        return {k: to_finite(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def to_json(value: Any) -> str:
    """`value` as indented JSON, NaN and infinity as null."""
    return json.dumps(to_finite(value), indent=2, allow_nan=False)
