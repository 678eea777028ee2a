"""`Scorer`: predictions of an exported model, without TensorFlow."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from twml_ops import _core
from twml_ops._raw_columns import categories, numbers_of, strings_of, times_of

# `cc/core/scorer/program.cc` and `tests/core/numpy_scorer.py` have the same numbers.
FORMAT = 1
FORMAT_WITH_BASE = 2
"""The format of a folder with arrays that refer to another folder, with changed rows."""
FORMAT_WITH_OUTPUTS = 3
"""The format of a folder with several outputs, and possibly such arrays."""
PROGRAM_FILE = "scorer.json"
ACTIVATIONS = (
    "elu",
    "exponential",
    "gelu",
    "relu",
    "sigmoid",
    "silu",
    "softmax",
    "softplus",
    "swish",
    "tanh",
)
"""The names in Keras of the activations that a scorer supports."""

_PARTS = ("ids", "values", "row_splits")


Storage = Literal["mapped", "memory", "file"]
"""Where a scorer has its large tables; see `Scorer.load`."""


class TableStatistics(NamedTuple):
    """What a scorer has read of tables in files. Without such tables all numbers are 0.

    Attributes:
        entries: ids whose rows were added up or copied.
        rows: different rows of each request, in all tables. A request of more than 512 rows counts
            as several.
        hits: number of these rows that were in the cache.
        misses: number of these rows that were not in the cache.
        reads: reads of files; a read has all rows of a request that are in the same or in
            neighboring blocks.
        bytes_read: bytes of these reads.
        bytes_needed: bytes of the rows that were read.
        sum_hits: sums that were in the cache of sums.
        sum_misses: sums that were not.
        tables: number of tables in files.
        cache_bytes: memory of the cache of rows.
        direct: whether reads go past the page cache.
        io_uring: whether reads are submitted with io_uring; otherwise threads read.
        hit_rate: the share of rows that were in the cache, NaN if there were none.
        read_amplification: bytes read by bytes needed, NaN if nothing was read.
    """

    entries: int
    rows: int
    hits: int
    misses: int
    reads: int
    bytes_read: int
    bytes_needed: int
    sum_hits: int
    sum_misses: int
    tables: int
    cache_bytes: int
    direct: bool
    io_uring: bool

    @property
    def hit_rate(self) -> float:
        """The share of rows that were in the cache, NaN if there were none."""
        return self.hits / self.rows if self.rows else math.nan

    @property
    def read_amplification(self) -> float:
        """Bytes read by bytes needed, NaN if nothing was read."""
        return self.bytes_read / self.bytes_needed if self.bytes_needed else math.nan


class Scorer:
    """A model that `twml_ops.export.to_scorer` wrote. Use `Scorer.load` to read it.

    Any number of threads may use a scorer, and `reload` it while others predict. So may the
    children of `os.fork` of a process that has loaded it, whatever its other threads do: each has
    threads, caches and counts of its own from then on.

    Args:
        model: the native scorer.
    """

    def __init__(self, model: _core.NativeScorer) -> None:
        self._model = model
        self._features = dict(model.features)
        self._columns = dict(model.columns)
        self._outputs = [(name, tuple(dims)) for name, dims in model.outputs]
        self._strings = {n: f for n, f in model.features if f in ("strings", "bag")}
        self._row_dims: dict[str, Any] = {
            name: dims for name, form, _, _, dims in model.describe(False) if form == "strings"
        }
        forms = list(self._features.values())
        by_form = {form: name for name, form in model.features}
        self._one_batch = set(forms) <= set(_PARTS) and len(forms) == len(set(forms))
        self._ids, self._values, self._splits = (by_form.get(part) for part in _PARTS)

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        *,
        storage: Storage = "mapped",
        cache_bytes: int = 256 << 20,
        sums_cache_bytes: int = 0,
        direct: bool = False,
        queue_depth: int = 64,
        least_bytes: int = 1 << 20,
    ) -> Scorer:
        """Reads a model from a folder.

        The files of the folder must not be changed while the scorer exists; see `reload`.
        Predictions do not depend on the options, which are kept by `reload`. All options but
        `storage` are for `storage="file"`.

        Args:
            path: the folder that `to_scorer` wrote.
            storage: where large tables are. "mapped": memory-mapped files; processes on one
                machine share their memory, and rows that are not used are not loaded. "memory": in
                memory of this process. "file": in the files, with the rows that are used most in a
                cache in memory; the rows that a request does not find there are read together. See
                "Supporting Massive DLRM Inference Through Software Defined Memory" (Ardestani et
                al., 2021).
            cache_bytes: memory for the cache of rows, which the tables share by their sizes; at
                least 16 rows of each. `reload` needs it twice for as long as the old model is used.
            sums_cache_bytes: memory for a cache of the sums of rows by the exact list of their
                ids and values; 0 is none. It pays where lists are repeated.
            direct: whether reads go past the page cache (O_DIRECT), where the file system can do
                that. Reads are then of whole blocks of the file system, and all memory is that of
                `cache_bytes`.
            queue_depth: number of reads of a request that run at the same time, at most 4,096.
            least_bytes: tables that are smaller are in memory.

        Returns:
            The scorer.

        Raises:
            FileNotFoundError: the folder or its program does not exist.
            ValueError: the folder has a format that this version of the package cannot read, or
                its files are damaged; or an option is out of its range, or needs `storage="file"`.
        """
        return cls(
            _core.NativeScorer(
                _folder(path),
                storage=storage,
                cache_bytes=cache_bytes,
                sums_cache_bytes=sums_cache_bytes,
                direct=direct,
                queue_depth=queue_depth,
                least_bytes=least_bytes,
            )
        )

    def reload(self, path: str | os.PathLike[str]) -> None:
        """Replaces the model by that of another folder.

        Requests that have begun end with the old model, and later ones get the new one. If the call
        fails, the scorer keeps the old model. Of several calls at the same time, the one that began
        last decides.

        Args:
            path: a folder that `to_scorer` wrote, with a model that takes the same inputs.

        Raises:
            FileNotFoundError: the folder or its program does not exist.
            ValueError: as for `load`, or the model takes other inputs, or its output has another
                width.
        """
        self._model.reload(_folder(path))

    @property
    def statistics(self) -> TableStatistics:
        """What was read of tables in files since the current model was loaded."""
        counts: dict[str, Any] = dict(self._model.statistics())
        return TableStatistics(**counts)

    @property
    def inputs(self) -> list[str]:
        """The names of the arrays that the model takes."""
        return list(self._features)

    @property
    def columns(self) -> list[str]:
        """The names of the raw columns that `predict` takes; empty if it takes none."""
        return list(self._columns)

    @property
    def times(self) -> frozenset[str]:
        """The names of the raw columns that are times, of which the model has features."""
        return frozenset(self._model.times)

    @property
    def output_name(self) -> str:
        """The name of the output that the model was exported with.

        With several outputs it is that of the first one; see `outputs`.
        """
        return self._model.output_name

    @property
    def outputs(self) -> dict[str, tuple[int, ...] | None]:
        """The name of each output and the shape of its rows.

        The shape of a single output is None: it may depend on the request.
        """
        return dict(self._outputs) if self._outputs else {self.output_name: None}

    def describe(self, raw: bool = False) -> list[tuple[str, str, str, str, Any]]:
        """Describes the arrays that `predict` takes.

        Args:
            raw: the raw columns, and not the features.

        Returns:
            For each array its name; its form: dense, strings, ids, values, row_splits or bag (the
            strings of all rows); its type: float32, int64, bool or string; the name of its row
            splits, "" without; and the shape of a row, None if the folder does not say.
        """
        return self._model.describe(raw)

    def predict(
        self,
        ids: ArrayLike | Mapping[str, ArrayLike] | Any,
        values: ArrayLike | None = None,
        row_splits: ArrayLike | None = None,
        *,
        num_threads: int = 0,
    ) -> Any:
        """Computes the predictions of a batch.

        Args:
            ids: int64 [K], the feature ids of all rows. For a model with several inputs, a mapping
                from the names in `inputs` to arrays, with the shapes and types of the
                `serving_default` signature of an exported SavedModel. For a scorer that was
                exported with a schema, also a mapping from the names in `columns` to raw data, each
                [B]: numbers, in which None, NaN and NA of pandas are missing values; categories as
                text, bytes, integers or bools, in which "" is one as well; and times as text,
                integers, datetimes or datetime64. A bag in the column `tags` is `tags` [K] and
                `tags_row_splits` [B + 1]. Other entries of such a mapping are ignored. Or a data
                frame of pandas or Polars, or an Arrow table, with these columns, in which a bag is
                a column of lists, or of texts such as `a|b` as in the data of the training.
                Categories of a model with a `StringHash` are given like the categories of columns.
            values: float32 [K], the values of the features, or None if the model takes no values.
            row_splits: int64 [B + 1], the CSR offsets of the rows, or None for a single row.
            num_threads: the largest number of threads that share the rows; 0 is one for each core.
                A thread gets at least 50 µs of work. The result does not depend on it.

        Returns:
            The model's output, float32 [B, …]; of several outputs a dict of them by name.

        Raises:
            ValueError: an input is missing or unexpected, a column has another type or length, an
                id is out of range, or `row_splits` is not a valid sequence of offsets.
            OSError: with `storage="file"`, a file cannot be read any more, or was changed.
        """
        if _may_be_table(ids):
            from twml_ops._frames import is_table, raw_columns  # import pyarrow

            if is_table(ids):
                if not self._columns:
                    raise ValueError(
                        f"ids must be a mapping with the inputs {self.inputs}, got a data frame: "
                        "the scorer was exported without a schema"
                    )
                ids = raw_columns(ids, self.describe(raw=True), self._model.separators, self.times)
        if isinstance(ids, Mapping):
            if self._columns and ids.keys() != self._features.keys():
                made = self._model.predict(self._raw(ids), raw=True, num_threads=num_threads)
                return self._split(made)
            given: dict[str, Any] = ids if isinstance(ids, dict) else dict(ids)
        else:
            given = self._batch(ids, values, row_splits)
        if given.keys() != self._features.keys():
            raise ValueError(f"the inputs must be {self.inputs}, got {sorted(given)}")
        if self._strings:
            given = self._with_strings(given)
        return self._split(self._model.predict(given, num_threads=num_threads))

    def rank(
        self,
        user: Mapping[str, ArrayLike],
        candidates: Mapping[str, ArrayLike],
        *,
        num_threads: int = 0,
    ) -> Any:
        """Computes the predictions of one user and B candidates.

        What depends on the user alone is computed once. A sparse batch may have entries of the
        user and of the candidates: a row then has the entries of the user, followed by the entries
        of the candidate. Sums over the user's entries are reused, so that their terms are added in
        another order: predictions differ from the results of `predict` by at most 1e-6 times the
        sum of the absolute values of the terms.

        Args:
            user: arrays as for `predict`, by name, with one row.
            candidates: arrays as for `predict`, by name, with B rows. Each dense array, column
                and bag has to be in one of the two mappings.
            num_threads: as for `predict`.

        Returns:
            The model's output for each candidate, float32 [B, …]; of several outputs a dict of them
            by name.

        Raises:
            ValueError: as for `predict`, an array is in both mappings, or `candidates` does not
                determine B.
            OSError: as for `predict`.
        """
        names = user.keys() | candidates.keys()
        raw = bool(self._columns) and not names <= self._features.keys()
        unknown = sorted(names - self._features.keys())
        if raw:
            of_user, of_rows = (self._raw(part, partial=True) for part in (user, candidates))
            return self._split(
                self._model.rank(of_user, of_rows, raw=True, num_threads=num_threads)
            )
        if unknown:
            raise ValueError(f"the inputs must be {self.inputs}, got {unknown}")
        parts = self._with_strings(user), self._with_strings(candidates)
        return self._split(self._model.rank(*parts, num_threads=num_threads))

    def _split(self, made: NDArray[np.float32]) -> Any:
        """The outputs by name, which are side by side in `made`, or the only one."""
        if not self._outputs:
            return made
        outputs, first = {}, 0
        for name, dims in self._outputs:
            width = math.prod(dims)
            outputs[name] = made[:, first : first + width].reshape(len(made), *dims)
            first += width
        return outputs

    def _with_strings(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The features, with strings as the native scorer takes them."""
        made = dict(given)
        for name, form in self._strings.items():
            if name not in made:
                continue
            array = categories(made[name])
            dims = tuple(self._row_dims[name]) if form == "strings" else ()
            if array.ndim == 0 or array.shape[1:] != dims:
                raise ValueError(f"{name} must have the shape {('B', *dims)}, got {array.shape}")
            made[name] = strings_of(name, array.ravel())
        return made

    def _batch(
        self, ids: ArrayLike, values: ArrayLike | None, row_splits: ArrayLike | None
    ) -> dict[str, Any]:
        """The arrays of a model with one sparse input, by name."""
        if not self._one_batch or self._ids is None or self._splits is None:
            raise ValueError(f"ids must be a mapping with the inputs {self.inputs}, got an array")
        given: dict[str, Any] = {self._ids: ids, self._splits: row_splits}
        if row_splits is None:
            given[self._ids] = ids = np.asarray(ids)
            if ids.size == 0:  # an empty list has no type
                given[self._ids] = ids.astype(np.int64)
            given[self._splits] = np.array([0, len(ids)])
        if values is not None:
            given[self._values or "values"] = values
        return given

    def _raw(self, given: Mapping[str, Any], partial: bool = False) -> dict[str, Any]:
        """The raw columns of a batch as the native scorer takes them.

        Args:
            given: column → data.
            partial: whether columns may be missing.
        """
        missing = [name for name in self._columns if name not in given]
        if missing and not partial:
            raise ValueError(f"the columns {missing} are missing, got {sorted(given)}")
        columns = {
            name: _vector(name, given[name], form in ("strings", "bag"))
            for name, form in self._columns.items()
            if name in given
        }
        rows = {
            name: len(column) - (self._columns[name] == "row_splits")
            for name, column in columns.items()
            if self._columns[name] in ("dense", "strings", "row_splits")
        }
        if len(set(rows.values())) > 1:
            raise ValueError(f"columns must have the same number of rows, got {rows}")
        made: dict[str, Any] = {}
        times = self.times
        for name, column in columns.items():
            form = self._columns[name]
            if form in ("strings", "bag"):
                is_time = name in times
                made[name] = strings_of(name, times_of(name, column) if is_time else column)
            elif form in ("dense", "values"):
                made[name] = numbers_of(name, column)
            else:
                made[name] = column
        return made


def _may_be_table(data: object) -> bool:
    """Whether it may have named columns: no mapping, and nothing that NumPy makes an array of."""
    return hasattr(data, "columns") or hasattr(data, "column_names")


def _folder(path: str | os.PathLike[str]) -> str:
    folder = Path(path)
    if not (folder / PROGRAM_FILE).exists():
        raise FileNotFoundError(f"{folder / PROGRAM_FILE} does not exist")
    return os.fspath(folder)


def _vector(name: str, column: ArrayLike, strings: bool) -> NDArray[Any]:
    array = categories(column) if strings else np.asarray(column)
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1:
        raise ValueError(f"column {name!r} must have the shape [B], got {array.shape}")
    return array
