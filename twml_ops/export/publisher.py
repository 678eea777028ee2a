"""Checkpoints of a training as versions of a served scorer."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tensorflow as tf

from twml_ops._known_categories import KnownCategories
from twml_ops._publish import exclusive, part_of
from twml_ops._scorer import PROGRAM_FILE
from twml_ops.checkpoint import CheckpointReader
from twml_ops.checkpoint.manifest import SHARDS
from twml_ops.data import Schema
from twml_ops.export.scorer import scorer_program
from twml_ops.export.scorer_files import Written, base_name, version_folders, write_scorer
from twml_ops.export.tables import RowFormat
from twml_ops.export.values import CheckpointValues, names_of

LOG = logging.getLogger(__name__)
LOCK_FILE = ".publisher.lock"


class ScorerPublisher:
    """Writes checkpoints of a training as versions that `twml-ops serve` serves.

        publisher = ScorerPublisher(model, "served/ranking")
        manager = CheckpointManager("run.checkpoints", tables=TablePolicy("consecutive"),
                                    on_written=publisher.publish)

    The first version has all arrays. A later one has the rows of tables that changed since the
    whole version that it is based on, and all small arrays; it is whole again if the layout of the
    model differs (its schema, steps, boundaries, vocabulary or calibration), or if more than a
    quarter of the rows of a table changed. Checkpoints that have changed rows (`TablePolicy`) are
    published without reading or writing the rest of a table.

    Weights come from the checkpoint, so the model may be trained meanwhile. With `use_ema` they are
    the weights that are trained, not their averages. A variable that is not in the checkpoint has
    its current value.

    Args:
        model: the model that is trained, or one with the same variables, such as one that ends in
            further layers.
        folder: the folder of the versions; it is created.
        tables: see `to_scorer`.
        schema: see `to_scorer`.
        output_name: see `to_scorer`.
        changed_rows: whether a version may have the changed rows of another one. Otherwise all
            versions are whole.
        keep: how many versions to keep, the last ones, beside the whole one that they need.
        trained: the model that the checkpoints are of. Default: `model`.
        known: the categories of the training data, which the server compares with the categories of
            requests.

    Raises:
        ValueError: `keep` is less than 1.
    """

    def __init__(
        self,
        model: tf.keras.Model,
        folder: str | os.PathLike[str],
        *,
        tables: RowFormat = "float32",
        schema: Schema | None = None,
        output_name: str | None = None,
        changed_rows: bool = True,
        keep: int = 2,
        trained: tf.keras.Model | None = None,
        known: KnownCategories | None = None,
    ) -> None:
        if keep < 1:
            raise ValueError(f"keep must be at least 1, got {keep}")
        self._model, self._trained = model, trained or model
        self._folder, self._keep, self._changed_rows = Path(folder), keep, changed_rows
        self._options: dict[str, Any] = {
            "tables": tables,
            "schema": schema,
            "output_name": output_name,
        }
        self._known = known
        self._names: dict[int, str] | None = None
        self._published: set[str] = set()  # checkpoints whose rows the newest version has
        self._checkpoints, self._last = "", ""  # the last one that was published
        self._newest: Path | None = None  # the version that this object wrote last

    def publish(self, checkpoint: CheckpointReader) -> Written:
        """Writes a checkpoint as the next version.

        Args:
            checkpoint: the checkpoint of the training, newer than the one that was published last.
                The first one of another folder is published as a whole.

        Returns:
            What was written.

        Raises:
            CheckpointError: the checkpoint is damaged.
            OSError: another publisher is writing a version, or this one cannot be written. It is
                not served then.
            ValueError: the checkpoint is not newer: its rows and the newer ones would be mixed. Or
                it is of a cluster. Or see `to_scorer`.
        """
        if SHARDS in checkpoint.manifest.values:
            raise ValueError(
                f"checkpoint must be of one process, got {checkpoint.folder} of a cluster; read it "
                "with `iter_checkpoints` of twml_ops.distribute and publish the model with "
                "`publish_model`"
            )
        folder, name = os.path.split(str(checkpoint.folder))
        if folder != self._checkpoints:
            self._published.clear()
        elif name <= self._last:
            raise ValueError(
                f"checkpoint must be newer than {self._last}, which was published last, got {name}"
            )
        if self._names is None:
            self._names = names_of(self._trained)
        with self._alone():
            newest = self._newest_version()
            since = self._published if newest is not None and newest == self._newest else ()
            values = CheckpointValues(self._names, checkpoint, since)
            program, files = scorer_program(self._model, **self._options, values=values)
            written = self._write({**program, "step": checkpoint.manifest.step}, files, newest)
        if not since:
            self._published.clear()
        self._published.add(name)
        self._checkpoints, self._last = folder, name
        return written

    def publish_model(self, step: int | None = None) -> Written:
        """Writes the current weights as the next version.

        Args:
            step: the step of the optimizer, which the version tells. Default: it tells none.

        Returns:
            What was written.

        Raises:
            OSError: another publisher is writing a version, or this one cannot be written. It is
                not served then.
            ValueError: see `to_scorer`.
        """
        program, files = scorer_program(self._model, **self._options)
        if step is not None:
            program["step"] = step
        with self._alone():
            self._published.clear()
            return self._write(program, files, self._newest_version())

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """No other publisher chooses a number or removes versions meanwhile."""
        self._folder.mkdir(parents=True, exist_ok=True)
        with exclusive(self._folder / LOCK_FILE, remove=True) as alone:
            if not alone:
                raise OSError(f"{self._folder}: another publisher is writing a version")
            yield

    def _newest_version(self) -> Path | None:
        if not self._changed_rows:
            return None
        found = [v for v in version_folders(self._folder) if (v / PROGRAM_FILE).is_file()]
        return found[-1] if found else None

    def _write(self, program: dict[str, Any], files: Any, base: Path | None) -> Written:
        folders = version_folders(self._folder)
        number = int(folders[-1].name) + 1 if folders else 1
        folder = self._folder / str(number)
        try:
            if self._known is not None:
                folder.mkdir(parents=True)
                self._known.save(folder)
            written = write_scorer(folder, program, files, base)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        self._newest = folder
        if written.base is None:
            LOG.info("version %d is whole: %s", number, written.reason)
        else:
            LOG.info(
                "version %d has %d changed rows of version %s, %d bytes",
                *(number, written.rows, written.base.name, written.bytes),
            )
        self._remove_old()
        return written

    def _remove_old(self) -> None:
        folders = [f for f in version_folders(self._folder) if _was_published(f)]
        kept = {v.name for v in folders[-self._keep :]}
        needed = kept | {base_name(self._folder / name) for name in kept}
        for folder in folders:
            if folder.name in needed:
                continue
            (folder / PROGRAM_FILE).unlink(missing_ok=True)  # no server begins to read it
            shutil.rmtree(folder, ignore_errors=True)


def _was_published(folder: Path) -> bool:
    """Whether a folder has only files of versions, so that no other files are removed."""
    if folder.is_symlink() or not folder.is_dir():
        return False
    program = (PROGRAM_FILE, part_of(folder / PROGRAM_FILE).name)
    return all(
        (path.name in program or path.suffix == ".npy") and path.is_file() and not path.is_symlink()
        for path in folder.iterdir()
    )
