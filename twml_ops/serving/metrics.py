"""The metrics of a server, for Prometheus."""

from __future__ import annotations

import dataclasses
import json
import os
import time
import weakref
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
    multiprocess,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from twml_ops._known_categories import Count
from twml_ops._scorer import TableStatistics
from twml_ops.serving.errors import Overloaded, RequestError

SHARED_DIR = "PROMETHEUS_MULTIPROC_DIR"
"""Variable of the environment: the folder of the values of processes that share the ports."""
_PROCESSES_FILE = "processes.json"  # in this folder, by the parent of these processes

_SECONDS = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025),
    *(0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
)


class _FilesOfProcesses(Collector):
    """The metrics in the files of all processes that share a folder.

    A file of a process that has just started, or was killed then, has no content for a moment,
    which `MultiProcessCollector.collect` cannot read.

    Args:
        folder: the folder.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def collect(self) -> Iterable[Metric]:
        """The metrics."""
        files = [str(file) for file in self._folder.glob("*.db") if _size(file) > 0]
        return multiprocess.MultiProcessCollector.merge(files, accumulate=True)


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except FileNotFoundError:  # of a process that has ended since
        return 0


@dataclass(eq=False)
class ProcessCounts(Collector):
    """The counts of the parent of several processes, which each of them reports.

    Attributes:
        wanted: number of processes that should serve.
        serving: number of processes that serve.
        served: processes that have ended after they served.
        in_vain: processes that have ended before they served.
    """

    wanted: int = 0
    serving: int = 0
    served: int = 0
    in_vain: int = 0

    def ended(self, served: bool) -> None:
        """Counts a process that has ended.

        Args:
            served: whether it had served.
        """
        if served:
            self.served += 1
        else:
            self.in_vain += 1

    def write(self, folder: Path) -> None:
        """Replaces the counts in a folder."""
        text = json.dumps(dataclasses.asdict(self))
        made = folder / f".{_PROCESSES_FILE}"
        made.write_text(text)
        made.replace(folder / _PROCESSES_FILE)

    @classmethod
    def read(cls, folder: Path) -> ProcessCounts:
        """The counts in a folder."""
        return cls(**json.loads((folder / _PROCESSES_FILE).read_text()))

    def collect(self) -> Iterator[Metric]:
        """The counts as metrics."""
        name = "twml_serving_processes"
        yield GaugeMetricFamily(name, "Processes that serve.", self.serving)
        yield GaugeMetricFamily(f"{name}_wanted", "Processes that should serve.", self.wanted)
        ends = CounterMetricFamily(
            f"{name}_ended", "Processes that ended, and were to be replaced.", labels=["result"]
        )
        ends.add_metric(["served"], self.served)
        ends.add_metric(["in_vain"], self.in_vain)
        yield ends


class Call:
    """A request that is being answered.

    Attributes:
        rows: the rows that have been computed for it.
    """

    def __init__(self) -> None:
        self.rows = 0


class _TableCounters:
    """Counters of tables in files, of all versions of a model, which their scorers count.

    Args:
        registry: where the counters are registered.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, text: str, *labels: str) -> Counter:
            labels = ("model", *labels)
            return Counter(f"twml_serving_table_{name}", text, labels, registry=registry)

        self._rows = counter("rows", "Different rows of each request.", "result")
        self._sums = counter("sums", "Sums looked up in the cache.", "result")
        self._reads = counter("reads", "Reads of files.")
        self._read_bytes = counter("read_bytes", "Bytes of these reads.")
        self._needed_bytes = counter("needed_bytes", "Bytes of the rows that were read.")
        self._source: weakref.ref[object] | None = None
        self._counts: TableStatistics | None = None

    def update(self, model: str, source: object, counts: TableStatistics) -> None:
        """Adds the counts of a version since the last call; see `Metrics.count_tables`."""
        before = self._counts
        if self._source is None or self._source() is not source:
            self._source, before = weakref.ref(source), None
        self._counts = counts
        for field, counter, *result in (
            ("hits", self._rows, "hit"),
            ("misses", self._rows, "miss"),
            ("sum_hits", self._sums, "hit"),
            ("sum_misses", self._sums, "miss"),
            ("reads", self._reads),
            ("bytes_read", self._read_bytes),
            ("bytes_needed", self._needed_bytes),
        ):
            added = getattr(counts, field) - (0 if before is None else getattr(before, field))
            counter.labels(model, *result).inc(max(0, added))


class Metrics:
    """The metrics of one server, in a registry of its own."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        self._requests = Counter(
            "twml_serving_requests", "Predict requests by code.", ["api", "code"], registry=registry
        )
        self._seconds = Histogram(
            "twml_serving_request_seconds",
            "Time from the first byte of a body to the answer.",
            ["api"],
            buckets=_SECONDS,
            registry=registry,
        )
        self._rows = Counter("twml_serving_rows", "Rows predicted.", ["api"], registry=registry)
        self._shed = Counter(
            "twml_serving_shed", "Requests refused for load.", ["api"], registry=registry
        )
        self._running = Gauge(
            "twml_serving_running",
            "Predict requests that are running.",
            registry=registry,
            multiprocess_mode="livesum",
        )
        self._loads = Counter(
            "twml_serving_loads", "Versions loaded or refused.", ["result"], registry=registry
        )
        self._version = Gauge(
            "twml_serving_model_version",
            "Version that is served, the oldest one of all processes.",
            ["model"],
            registry=registry,
            multiprocess_mode="livemin",
        )
        self._step = Gauge(
            "twml_serving_model_step",
            "Step of the training that the served version is of; -1 if it does not say.",
            ["model"],
            registry=registry,
            multiprocess_mode="livemin",
        )
        self._ended = Counter(
            "twml_serving_connections_ended",
            "HTTP connections that the server has ended before the client did.",
            ["reason"],
            registry=registry,
        )
        self._categories = Counter(
            "twml_serving_categories",
            "Categories of some requests, by whether they were in the training data.",
            ["model", "field", "result"],
            registry=registry,
        )
        self._tables: _TableCounters | None = None
        for result in ("loaded", "refused"):
            self._loads.labels(result)
        self._by_code: dict[tuple[str, str], Counter] = {}
        self._by_api = {
            api: (self._seconds.labels(api), self._rows.labels(api), self._shed.labels(api))
            for api in ("rest", "grpc")
        }

    @contextmanager
    def call(self, api: Literal["rest", "grpc"]) -> Iterator[Call]:
        """Counts a predict request, whose code the outcome of the block decides.

        Args:
            api: the interface of the request.

        Yields:
            The request, of which the block sets the rows.
        """
        seconds, rows, shed = self._by_api[api]
        call, begin = Call(), time.perf_counter()
        code = "canceled"  # by the client
        self._running.inc()
        try:
            yield call
            code = "200" if api == "rest" else "OK"
        except RequestError as e:
            code = str(e.http) if api == "rest" else e.grpc.name
            if isinstance(e, Overloaded):
                shed.inc()
            raise
        finally:
            self._running.dec()
            seconds.observe(time.perf_counter() - begin)
            counter = self._by_code.get((api, code))
            if counter is None:
                counter = self._by_code[api, code] = self._requests.labels(api, code)
            counter.inc()
            if call.rows:
                rows.inc(call.rows)

    def count_load(self, ok: bool) -> None:
        """Counts a version that was loaded, or refused."""
        self._loads.labels("loaded" if ok else "refused").inc()

    def count_ended(self, reason: str) -> None:
        """Counts an HTTP connection that the server has ended.

        Args:
            reason: one of `connections.REASONS`.
        """
        self._ended.labels(reason).inc()

    def set_version(self, model: str, version: int, step: int | None) -> None:
        """Tells which version is served from now on.

        Args:
            model: name of the model.
            version: its version.
            step: the step of its training; None if it does not say.
        """
        self._version.labels(model).set(version)
        self._step.labels(model).set(-1 if step is None else step)

    def count_tables(self, model: str, source: object, counts: TableStatistics) -> None:
        """Counts what was read of tables in files since the last call.

        Args:
            model: the name of the model.
            source: the version whose scorer counted; another one counts from 0.
            counts: the counts of the scorer.
        """
        if not counts.tables:
            return
        if self._tables is None:  # servers without tables in files have no such metrics
            self._tables = _TableCounters(self._registry)
        self._tables.update(model, source, counts)

    def count_categories(self, model: str, counts: Mapping[str, Count]) -> None:
        """Counts categories that were looked up.

        Args:
            model: the name of the model.
            counts: name of a column → how many of its categories were examined and unknown.
        """
        for field, count in counts.items():
            for result, size in (
                ("unknown", count.unknown),
                ("known", count.examined - count.unknown),
            ):
                self._categories.labels(model, field, result).inc(size)

    def text(self) -> bytes:
        """The metrics in Prometheus' text format, of all processes that share the ports."""
        shared = os.environ.get(SHARED_DIR)
        if shared is None:
            return generate_latest(self._registry)
        for file in Path(shared).glob("gauge_live*_*.db"):
            pid = file.stem.rpartition("_")[2]
            if not Path(f"/proc/{pid}").exists():  # of a process that was killed
                multiprocess.mark_process_dead(pid, shared)
        registry = CollectorRegistry()
        registry.register(_FilesOfProcesses(Path(shared)))
        if (Path(shared) / _PROCESSES_FILE).exists():
            registry.register(ProcessCounts.read(Path(shared)))
        return generate_latest(registry)
