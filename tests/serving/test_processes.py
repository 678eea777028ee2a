"""Several processes serve on the same ports, with metrics of all of them."""

import contextlib
import http.client
import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("twml_ops.serving", reason="needs the extra `serve`")

from tests.core import scorer_programs
from tests.serving.clients import constant_model
from twml_ops import _child
from twml_ops.cli import main
from twml_ops.serving import metrics
from twml_ops.serving.processes import MAX_DELAY, delay_of

PREDICT = "/v1/models/ranking:predict"
SERVED, IN_VAIN = (
    f'twml_serving_processes_ended_total{{result="{result}"}}' for result in ("served", "in_vain")
)


@contextlib.contextmanager
def served(folder, *options):
    """The process of `twml-ops serve` with two processes, and its ports."""
    ports = ["--rest-port", "0", "--grpc-port", "0", "--processes", "2", "--poll", "0.05"]
    command = _child.command("twml_ops.cli", "serve", str(folder), *ports, *options)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            line = process.stdout.readline()
            yield process, [int(port) for port in re.findall(r"port (\d+)", line)]
        finally:
            process.terminate()
            try:
                rest = process.communicate(timeout=120)[0]
            except subprocess.TimeoutExpired:
                process.kill()
                raise
    assert "stopped" in rest
    assert process.returncode == 0


def wait_for(process, condition):
    """Waits until a condition holds, as long as the server runs."""
    end = time.monotonic() + 120
    while not condition():
        assert process.poll() is None, "the server has ended"
        assert time.monotonic() < end, "the condition does not hold after 120 s"
        time.sleep(0.01)


def ask(port, method, path, body=None):
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=300)) as c:
        c.request(method, path, body)
        answer = c.getresponse()
        assert answer.status == 200
        return answer.read()


def metric(port, name):
    text = ask(port, "GET", "/metrics").decode()
    return sum(float(v) for v in re.findall(rf"^{name}(?:{{.*}})? (\S+)$", text, re.M))


def children(pid):
    """The processes that serve; one more tracks resources."""
    found = []
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        with contextlib.suppress(OSError):  # it has ended meanwhile
            if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes():
                found.append(int(child))
    return found


def test_metrics_are_those_of_all_processes_and_a_killed_one_is_replaced(tmp_path):
    constant_model(1, tmp_path / "ranking" / "1")
    with served(tmp_path / "ranking") as (process, (port, *_)):
        before = children(process.pid)
        assert len(before) == 2
        body = json.dumps({"instances": [[1]]})
        for _ in range(20):  # on new connections, which the kernel divides
            assert json.loads(ask(port, "POST", PREDICT, body)) == {"predictions": [[1.0] * 3]}
        counts = [metric(port, "twml_serving_requests_total") for _ in range(5)]
        assert counts == [20.0] * 5
        assert metric(port, "twml_serving_running") == 0
        constant_model(2, tmp_path / "ranking" / "2")
        # Until both have it.
        wait_for(process, lambda: metric(port, "twml_serving_model_version") == 2)
        for _ in range(10):
            assert json.loads(ask(port, "POST", PREDICT, body)) == {"predictions": [[2.0] * 3]}
        assert metric(port, "twml_serving_requests_total") == 30
        os.kill(before[0], signal.SIGKILL)
        wait_for(process, lambda: len(set(children(process.pid)) - {before[0]}) == 2)
        assert metric(port, "twml_serving_requests_total") == 30


def test_tables_in_files_are_counted_over_all_processes(tmp_path):
    rows = 1 << 14  # 1 MiB, from which on tables are in files
    example = scorer_programs.Example()
    table = np.ones((rows, 16), np.float32)
    example.step("sparse_linear", example.batch("x", rows, False), ["#0"], {"table": table})
    example.write(tmp_path / "ranking" / "1")
    with served(tmp_path / "ranking", "--storage", "file") as (_, (port, *_)):
        assert metric(port, "twml_serving_table_rows_total") == 0
        body = json.dumps({"instances": [[1, 2, 3]]})
        for _ in range(20):
            ask(port, "POST", PREDICT, body)
        # A request has three rows, and the first one of a process has the rows of the warm-up too.
        counts = {metric(port, "twml_serving_table_rows_total") for _ in range(5)}
        assert len(counts) == 1
        assert counts.pop() >= 60


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--poll", "0"], "--processes needs --poll"),
        (["--threads", "-1"], "threads"),
    ],
)
def test_wrong_options_are_errors(tmp_path, capsys, options, message):
    constant_model(1, tmp_path / "1")
    with pytest.raises(SystemExit):
        main(["serve", str(tmp_path), "--processes", "2", *options])
    assert message in capsys.readouterr().err


def test_a_folder_without_a_version_is_an_error(tmp_path, capfd):
    with pytest.raises(SystemExit):
        main(["serve", str(tmp_path), "--processes", "2", "--rest-port", "0", "--grpc-port", "0"])
    assert "no scorer.json" in capfd.readouterr().err


def kill(process, child, port):
    """Kills a process and waits until it has no connections, which are reset as it ends."""
    os.kill(child, signal.SIGKILL)

    def is_counted():
        with contextlib.suppress(ConnectionError):
            return metric(port, re.escape(SERVED)) == 1

    wait_for(process, is_counted)


def served_alone(folder):
    """The process of a server whose end a test looks at, its port and its log."""
    ports = ["--rest-port", "0", "--grpc-port", "0", "--processes", "2", "--grace", "1"]
    command = _child.command("twml_ops.cli", "serve", str(folder), *ports)
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    return process, int(re.search(r"REST on port (\d+)", process.stdout.readline())[1])


@pytest.mark.parametrize("how", ["signal", "all"])
def test_processes_that_cannot_be_replaced_end_the_server_only_if_none_is_left(tmp_path, how):
    constant_model(1, tmp_path / "ranking")
    process, port = served_alone(tmp_path / "ranking")
    try:
        (tmp_path / "ranking").rename(tmp_path / "away")
        first, second = children(process.pid)
        kill(process, first, port)
        wait_for(process, lambda: metric(port, re.escape(IN_VAIN)) >= 1)
        assert metric(port, "twml_serving_processes") == 1
        body = json.dumps({"instances": [[1]]})
        assert json.loads(ask(port, "POST", PREDICT, body)) == {"predictions": [[1.0] * 3]}
        if how == "signal":
            process.terminate()  # while it waits for the next attempt, or starts it
        else:
            os.kill(second, signal.SIGKILL)
        output, log = process.communicate(timeout=120)
    finally:
        process.kill()
    assert "it is replaced in 1 s, 1 of 2 processes serve" in log
    if how == "signal":
        assert (process.returncode, output) == (0, "stopped\n")
    else:
        assert (process.returncode, output) == (1, "")
        assert "no process serves, and none could be replaced" in log


def test_a_process_is_replaced_when_it_can_start_again(tmp_path):
    constant_model(1, tmp_path / "ranking")
    with served(tmp_path / "ranking") as (process, (port, *_)):
        (tmp_path / "ranking").rename(tmp_path / "away")
        kill(process, children(process.pid)[0], port)
        wait_for(process, lambda: metric(port, re.escape(IN_VAIN)) >= 1)
        (tmp_path / "away").rename(tmp_path / "ranking")
        wait_for(process, lambda: metric(port, "twml_serving_processes") == 2)
        assert metric(port, re.escape(SERVED)) == 1


def test_attempts_to_replace_a_process_come_at_growing_distances():
    delays = [delay_of(failures) for failures in range(1, 12)]
    assert delays[:4] == [0, 1, 2, 4]
    assert delays == sorted(delays)
    assert delays[-1] == MAX_DELAY


def test_a_process_that_has_just_started_does_not_hide_the_metrics_of_the_others(
    tmp_path, monkeypatch
):
    monkeypatch.setenv(metrics.SHARED_DIR, str(tmp_path))
    (tmp_path / "counter_1.db").write_bytes(b"")  # it has made its file, without content yet
    (tmp_path / "gauge_livesum_1.db").write_bytes(b"")
    metrics.ProcessCounts(wanted=2, serving=1).write(tmp_path)
    assert b"twml_serving_processes_wanted 2.0" in metrics.Metrics().text()
