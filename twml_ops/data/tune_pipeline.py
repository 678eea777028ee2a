"""Tries settings of an input pipeline one after the other, and keeps those that are faster."""

from __future__ import annotations

import dataclasses
import importlib.util
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import tensorflow as tf

from twml_ops.data.pipeline import InputSettings, Pipeline

WORTH = 1.05  # a change that is not so much faster is not taken: noise, and a simpler pipeline

Measure = Callable[[InputSettings], float]


class Trial(NamedTuple):
    """One setting tried.

    Attributes:
        change: what was changed, in words.
        settings: all of them.
        rate: examples a second.
        taken: whether it is in use from then on.
    """

    change: str
    settings: InputSettings
    rate: float
    taken: bool


def load(reference: str) -> Pipeline:
    """The pipeline that `FILE.py:NAME` names.

    Raises:
        ValueError: there is no such file, or nothing of that name and kind in it.
    """
    return load_object(reference, Pipeline, "a twml_ops.data.Pipeline")


def load_object(reference: str, kind: type[Any], what: str) -> Any:
    """The object that `FILE.py:NAME` names, or that the function of this name makes.

    Raises:
        ValueError: there is no such file, or nothing of that name and kind in it.
    """
    found = load_attribute(reference, what)
    if callable(found) and not isinstance(found, kind):
        found = found()
    if not isinstance(found, kind):
        path, _, name = reference.rpartition(":")
        raise ValueError(f"{path}: {name} must be {what}, or make one")
    return found


def load_attribute(reference: str, what: str) -> Any:
    """The object that `FILE.py:NAME` names; the file is executed.

    Raises:
        ValueError: there is no such file, or nothing of that name in it.
    """
    path, _, name = reference.rpartition(":")
    if not path or not Path(path).is_file():
        raise ValueError(f"expected FILE.py:NAME of {what}, got {reference!r}")
    spec = importlib.util.spec_from_file_location(f"_twml_ops_file_{Path(path).stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module.__name__] = module  # where AutoGraph looks for it
    spec.loader.exec_module(module)
    if not hasattr(module, name):
        raise ValueError(f"{path}: has no {name}, expected {what}")
    return getattr(module, name)


def measure(pipeline: Pipeline, seconds: float, step: float) -> Measure:
    """The examples per second with some settings, with a step of so many seconds after each
    batch.
    """

    def rate(settings: InputSettings) -> float:
        batches = iter(pipeline.dataset(settings).repeat())
        _take(next(batches), step)  # opening files, filling what is ahead
        start, count = time.perf_counter(), 0
        while (passed := time.perf_counter() - start) < seconds or not count:
            _take(next(batches), step)
            count += 1
        return count * pipeline.batch_size / passed if passed else 0.0

    return rate


def search(pipeline: Pipeline, rate_of: Measure, cores: int) -> Iterator[Trial]:
    """Tries one change after the other, and keeps what helps."""
    settings = pipeline.settings
    best = rate_of(settings)
    yield Trial("as it is", settings, best, True)
    for change, field, value in _changes(pipeline, cores):
        if getattr(settings, field) == value:
            continue
        changed = dataclasses.replace(settings, **{field: value})
        rate = rate_of(changed)
        taken = rate > WORTH * best
        yield Trial(change, changed, rate, taken)
        if taken:
            settings, best = changed, rate


def _changes(pipeline: Pipeline, cores: int) -> Iterator[tuple[str, str, Any]]:
    if pipeline.parse_one is not None:
        yield "batch before parsing", "batch_first", True
    for files in sorted({2, 4, cores} - {1}):
        yield f"read {files} files at once", "read_files", files
    for calls in sorted({2, cores, 2 * cores} - {1}):
        yield f"{calls} parses at once", "parallel_calls", calls
    for ahead in (1, 4):
        yield f"{ahead} batch{'es' if ahead > 1 else ''} ahead", "prefetch", ahead


def _take(batch: Any, step: float) -> None:
    tf.nest.flatten(batch)
    if step:
        time.sleep(step)
