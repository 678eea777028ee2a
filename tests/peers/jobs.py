"""Jobs of several ranks for tests: each is started once and reports the errors of its laws."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

import pytest

from twml_ops.peers._mpi import is_installed
from twml_ops.peers.launch import JobResult, run_job

needs_mpi = pytest.mark.skipif(not is_installed(), reason="twml_ops[mpi] is not installed")
ROOT = Path(__file__).resolve().parents[2]
TIMEOUT = 300  # seconds; only a job that hangs needs as much


@dataclasses.dataclass
class Job:
    """A job of ranks that run a module of the tests.

    Attributes:
        module: Its name; its arguments are a folder for the results and the sizes of the groups.
        ranks: Number of ranks.
        sizes: Of the groups that run the laws.
        transport: See `mpirun_command`.
    """

    module: str
    ranks: int
    sizes: tuple[int, ...]
    transport: str = "shared"

    def start(self, folder: Path) -> None:
        """Runs the job."""
        lines: list[str] = []
        self.result: JobResult = run_job(
            [sys.executable, "-m", self.module, str(folder), ",".join(map(str, self.sizes))],
            self.ranks,
            max_restarts=0,
            transport=self.transport,
            environment={"PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"},
            show=lines.append,
            timeout=TIMEOUT,
        )
        files = [folder / f"{rank}.json" for rank in range(self.ranks)]
        missing = {"no results": "\n".join(lines)}
        self.errors = [json.loads(f.read_text()) if f.exists() else missing for f in files]

    def check(self, size: int, law: str) -> None:
        """Fails if a rank has an error of a law, or has not come to it."""
        for errors in self.errors:
            problem = errors.get(f"{size} {law}", next(filter(None, errors.values()), "not run"))
            if problem is not None:
                pytest.fail(problem, pytrace=False)

    def check_end(self) -> None:
        """Fails if not all ranks ended as they should."""
        assert (self.result.status, self.result.starts) == (0, 1)
        assert self.result.finished == tuple(range(self.ranks))


def started_once(jobs: dict[str, Job]):
    """A fixture of a module: the function that returns a job by name, started at first use."""

    @pytest.fixture(scope="module")
    def job_of(tmp_path_factory):
        started = set()

        def of(name: str) -> Job:
            if name not in started:
                started.add(name)
                jobs[name].start(tmp_path_factory.mktemp("ranks"))
            return jobs[name]

        return of

    return job_of
