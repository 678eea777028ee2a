"""A plugin that lists the CPU seconds of each test file: `python -m pytest -p tests.cpu_times`.

Unlike the durations of pytest they hardly depend on what else the machine does, and they include
the child processes of a test. They count setup, call and teardown, without the imports.
"""

import collections
import resource

import pytest

from tests import forked

SHOWN = 60

_seconds = collections.Counter()
_last = 0.0


def _cpu_seconds():
    used = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(u.ru_utime + u.ru_stime for u in used) + forked.cpu_seconds


def pytest_runtest_logstart():
    """Excludes what came before the test."""
    global _last
    _last = _cpu_seconds()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport():
    """Adds the time since the last report. Workers of pytest-xdist send it to the main process."""
    global _last
    report = yield
    now = _cpu_seconds()
    report.cpu_seconds = now - _last
    _last = now
    return report


def pytest_runtest_logreport(report):
    """Adds up the reports of all processes."""
    _seconds[report.nodeid.split("::")[0]] += getattr(report, "cpu_seconds", 0.0)


def pytest_terminal_summary(terminalreporter):
    """Prints the longest files and the sum of all."""
    terminalreporter.section("CPU seconds")
    for file, seconds in _seconds.most_common(SHOWN):
        terminalreporter.write_line(f"{seconds:8.1f}  {file}")
    terminalreporter.write_line(f"{_seconds.total():8.1f}  in all")
