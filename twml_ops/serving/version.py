"""One version of a model: its scorer, and the answers to decoded requests."""

from __future__ import annotations

import contextlib
import json
import logging
import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from twml_ops._scorer import PROGRAM_FILE, TableStatistics
from twml_ops.core import Scorer
from twml_ops.serving import inputs
from twml_ops.serving.errors import InvalidRequest, RequestError
from twml_ops.serving.inputs import Arrays, Input, Signatures, check_rows
from twml_ops.serving.options import ServerOptions
from twml_ops.serving.unknown_categories import CategoryCounter

LOG = logging.getLogger(__name__)
WARMUP_FILE = "warmup.json"
_WARMUP_ROWS = (1, 64)


@dataclass(frozen=True)
class Prediction:
    """The answer to a request.

    Attributes:
        outputs: each output by its name, float32 [B, ...].
        rows: B.
        by_row: whether a JSON body had `instances`.
    """

    outputs: dict[str, NDArray[np.float32]]
    rows: int
    by_row: bool = False

    @property
    def values(self) -> Any:
        """The only output; of several the dict of them."""
        return self.outputs if len(self.outputs) > 1 else next(iter(self.outputs.values()))


@dataclass(frozen=True, eq=False)
class Version:
    """A version of a model that can be served. Any number of threads may use it.

    Attributes:
        number: its number.
        scorer: its scorer.
        options: the limits of requests.
        signatures: what it takes.
        output_names: the names of its outputs.
        output_dims: the shapes of their rows by name; empty before the warm-up.
        step: the step of the training that its weights are of; None if it does not say.
        update: how it differs from earlier versions, as a text.
        categories: counts categories that the model has not seen; None if it does not say.
    """

    number: int
    scorer: Scorer
    options: ServerOptions
    signatures: Signatures
    output_names: list[str]
    output_dims: dict[str, tuple[int, ...]] = field(default_factory=dict)
    step: int | None = None
    update: str = ""
    categories: CategoryCounter | None = None

    @classmethod
    def load(cls, folder: Path, number: int, options: ServerOptions) -> Version:
        """Reads a version and warms it up.

        Args:
            folder: its folder.
            number: its number.
            options: the options of the server.

        Raises:
            OSError: a file cannot be read.
            ValueError: the folder is damaged, or the saved request of the warm-up is malformed or
                does not fit the model.
        """
        scorer = Scorer.load(
            folder,
            storage=options.storage,
            cache_bytes=options.cache_bytes,
            sums_cache_bytes=options.sums_cache_bytes,
            direct=options.direct,
            queue_depth=options.queue_depth,
        )
        signatures = Signatures(_inputs(scorer, raw=False), _inputs(scorer, raw=True))
        program = json.loads((folder / PROGRAM_FILE).read_bytes())
        version = cls(
            *(number, scorer, options, signatures, list(scorer.outputs)),
            step=step if isinstance(step := program.get("step"), int) else None,
            update=_update(program),
        )
        own = folder / WARMUP_FILE
        saved = own if own.exists() else options.warmup
        try:
            if saved is None:
                version._warm_up()
            else:
                version._learn_shapes(version.predict_json(read_json(saved.read_bytes())))
        except RequestError as e:
            if saved is not None:
                raise ValueError(f"the warm-up request {saved} failed: {e}") from e
            # A model may refuse made-up rows, for example unknown features.
            LOG.info("version %d refused the made-up rows of the warm-up: %s", number, e)
        return replace(version, categories=CategoryCounter.load(folder, program))

    @property
    def statistics(self) -> TableStatistics:
        """The counts of what the scorer has read of tables in files."""
        return self.scorer.statistics

    def predict_json(self, body: Any) -> Prediction:
        """Answers the JSON value of a REST request.

        Args:
            body: the value.

        Raises:
            RequestError: the request is malformed, does not fit the model, or is too large.
        """
        if not isinstance(body, dict) or ("instances" in body) == ("inputs" in body):
            raise InvalidRequest("the body must be an object with either instances or inputs")
        unknown = body.keys() - {"instances", "inputs", "signature_name"}
        signature = body.get("signature_name", "")
        if unknown or not isinstance(signature, str):
            raise InvalidRequest(
                "the body must have instances or inputs and the text signature_name, got also "
                f"{inputs.listed(unknown)}"
            )
        by_row = "instances" in body
        given = body["instances" if by_row else "inputs"]
        if by_row and isinstance(given, list):
            inputs.check_count(len(given), self.options.max_rows)
        decode = inputs.rows if by_row else inputs.columnar
        return self.predict(*decode(self.signatures, signature, given), by_row)

    def predict_arrays(self, signature: str, arrays: Arrays) -> Prediction:
        """Answers a request of arrays.

        Args:
            signature: name of the signature, or "".
            arrays: the inputs by name.

        Raises:
            RequestError: the request does not fit the model, or is too large.
            OSError: a file with a table cannot be read any more.
        """
        return self.predict(self.signatures.find(arrays.keys(), signature), arrays)

    def predict(self, known: dict[str, Input], arrays: Arrays, by_row: bool = False) -> Prediction:
        """Computes the predictions of arrays; see `predict_arrays`."""
        rows = check_rows(known, arrays, self.options.max_rows)
        _check_floats(arrays)
        try:
            with np.errstate(all="ignore"):  # of numbers that are not finite
                values = self.scorer.predict(arrays, num_threads=self.options.row_threads)
        except (ValueError, TypeError, OverflowError) as e:
            raise InvalidRequest(str(e)) from e
        if self.categories is not None:
            self.categories.look_up(arrays)
        outputs = values if isinstance(values, dict) else {self.output_names[0]: values}
        return Prediction(outputs, rows, by_row)

    def _learn_shapes(self, prediction: Prediction) -> None:
        for name, array in prediction.outputs.items():
            self.output_dims[name] = array.shape[1:]

    def _warm_up(self) -> None:
        """Computes made-up rows, so that memory is allocated and the program is in caches."""
        times = self.scorer.times
        for known in self.signatures.by_name.values():
            for rows in _WARMUP_ROWS:
                arrays = {n: _rows_of(one, rows, n in times) for n, one in known.items()}
                self._learn_shapes(self.predict(known, arrays))


def _update(program: dict[str, Any]) -> str:
    """A text for logs: the version has changed rows, or all arrays and the reason."""
    if "base" in program:
        return f"changed rows of {program['base']['folder']}"
    return f"whole: {program['whole']}" if "whole" in program else "whole"


def _check_floats(arrays: Arrays) -> None:
    """Refuses numbers that float32 would make infinite, as the readers of training data do."""
    for name, array in arrays.items():
        if array.dtype != np.float64:
            continue
        beyond = np.isfinite(array) & (np.abs(array) > np.finfo(np.float32).max)
        if beyond.any():
            got = array[beyond].ravel()[0]
            raise InvalidRequest(f"input {name!r} must be finite in float32, got {got}")


def _inputs(scorer: Scorer, raw: bool) -> list[Input]:
    return [
        Input(name, form, dtype, splits, None if dims is None else tuple(dims))
        for name, form, dtype, splits, dims in scorer.describe(raw)
    ]


def _rows_of(one: Input, rows: int, is_time: bool) -> NDArray[Any]:
    """Rows with one entry each: the number 0, the id 0, the category "0", and no time."""
    if one.form == "row_splits":
        return np.arange(rows + 1)
    shape = (rows, *(one.dims or ()))
    if one.dtype == "string":
        return np.full(shape, b"" if is_time else b"0", object)
    return np.zeros(shape, one.dtype)


def _finite(text: str) -> float:
    """A number of a JSON text; one that is beyond float64 is not read as infinity."""
    number = float(text)
    if math.isinf(number):
        raise InvalidRequest(f"numbers must be finite in float64, got {text[:40]}")
    return number


def read_json(data: bytes) -> Any:
    """The value of a JSON text.

    Raises:
        InvalidRequest: it is malformed.
    """
    with contextlib.suppress(orjson.JSONDecodeError):
        return orjson.loads(data)
    try:
        # Also takes NaN and Infinity, and is several times slower.
        return json.loads(data, parse_float=_finite)
    except (ValueError, RecursionError) as e:  # also of bytes that are not UTF-8
        raise InvalidRequest(f"the body must be JSON: {e}") from e
