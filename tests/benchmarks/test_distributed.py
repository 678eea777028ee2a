"""Network namespaces as hosts: caps, counters, clean-up; and a tiny run of the benchmark."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import run
from benchmarks.distributed import grid, network, page
from benchmarks.distributed.network import Network

ROOT = Path(__file__).resolve().parents[2]
WHY_NOT = network.unavailable()
needs_network = pytest.mark.skipif(WHY_NOT is not None, reason=f"no namespaces: {WHY_NOT}")
MB = 10**6

RECEIVE = """
import socket
server = socket.create_server(("", 9000))
print("ready", flush=True)
link, _ = server.accept()
total = 0
while piece := link.recv(2**16):
    total += len(piece)
link.close()
print(total)
"""
SEND = """
import socket, sys, time
with socket.create_connection((sys.argv[1], 9000)) as link:
    start = time.perf_counter()
    link.sendall(bytes(int(sys.argv[2])))
    link.shutdown(socket.SHUT_WR)
    link.recv(1)  # until the other side has everything, and closes
    print(time.perf_counter() - start)
"""


def send(net, size):
    """Sends `size` bytes from b to a; returns the received bytes and the seconds."""
    on_a = net.on("a", [sys.executable, "-c", RECEIVE])
    with subprocess.Popen(on_a, stdout=subprocess.PIPE, text=True) as receiver:
        assert receiver.stdout.readline() == "ready\n"
        command = [sys.executable, "-c", SEND, net.address("a"), str(size)]
        sent = subprocess.run(net.on("b", command), check=True, stdout=subprocess.PIPE, text=True)
        total = int(receiver.stdout.read())
    return total, float(sent.stdout)


@needs_network
def test_the_egress_of_a_host_is_counted_and_stays_below_its_cap():
    with Network(["a", "b"]) as net:
        net.cap(10 * MB)
        before = net.sent()
        total, seconds = send(net, 2 * MB)
        sent = {host: n - before[host] for host, n in net.sent().items()}
        assert total == 2 * MB
        assert seconds >= (2 * MB - 2 * network.MIN_BURST) / (10 * MB)
        assert 2 * MB < sent["b"] < 1.1 * 2 * MB  # with headers
        assert sent["a"] < 0.1 * MB  # acknowledgements
        net.cap(None)
        assert send(net, 2 * MB)[0] == 2 * MB


@needs_network
def test_hosts_reach_only_each_other():
    with Network(["a"]) as net:
        routes = subprocess.run(
            net.on("a", ["ip", "route"]), check=True, capture_output=True, text=True
        ).stdout
        assert [line.split()[0] for line in routes.splitlines()] == [f"{network.SUBNET}.0/24"]


def namespaces_of(pid):
    return [n for n in network.namespaces() if n.startswith(f"{network.PREFIX}-{pid}-")]


@needs_network
def test_namespaces_are_removed_after_an_error():
    def fail():
        with Network(["a", "b"]):
            assert len(namespaces_of(os.getpid())) == 3
            raise KeyError("x")

    with pytest.raises(KeyError):
        fail()
    assert namespaces_of(os.getpid()) == []


@needs_network
def test_the_namespaces_of_a_killed_run_are_removed_by_the_next_one():
    code = (
        "import os, signal; from benchmarks.distributed.network import Network\n"
        "with Network(['a']): os.kill(os.getpid(), signal.SIGKILL)"
    )
    with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT) as process:
        process.wait()
    assert namespaces_of(process.pid) != []
    network.remove_stale()
    assert namespaces_of(process.pid) == []


@needs_network
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_cleans_up(number, tmp_path):
    command = [sys.executable, "-m", "benchmarks.distributed", "--quick", "--docs", str(tmp_path)]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
        assert "starting" in process.stderr.readline()
        process.send_signal(number)
        process.stderr.read()
    assert process.returncode != 0
    assert namespaces_of(process.pid) == []


def test_without_root_the_error_is_one_line(tmp_path):
    code = (
        "import os, sys; from pathlib import Path\n"
        "from benchmarks.distributed.__main__ import main\n"
        "os.geteuid() or os.setuid(65534)\n"
        "main(docs=Path(sys.argv[1]))"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "needs root" in done.stderr or "not found" in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@needs_network
def test_a_tiny_run_writes_results_page_and_picture(tmp_path):
    run.measure_distributed(tmp_path, "the command", seconds=0.1, quick=True, only=grid.BY_ROW)
    found = json.loads((tmp_path / "performance.json").read_text())["distributed"]
    assert found["failed"] == {}
    cell = found["cells"]["2^10 rows, 1 server, 1 worker"][grid.BY_ROW]["10"]
    assert (
        cell["bytes"] > cell["predicted_bytes"] > 0
    )  # the prediction does not include the envelopes of RPC
    assert cell["steps"] > 0
    text = (tmp_path / "performance.md").read_text()
    assert "| 2^10 rows, 1 server, 1 worker | 10 | hybrid by row |" in text
    assert (tmp_path / "img" / page.PICTURE).read_bytes().startswith(b"\x89PNG")
    assert namespaces_of(os.getpid()) == []


@needs_network
@pytest.mark.slow
def test_strategies_have_the_same_loss_and_partial_runs_are_merged(tmp_path):
    for only in (grid.STANDARD, grid.BY_ROW):
        run.measure_distributed(tmp_path, "the command", seconds=0.1, quick=True, only=only)
    found = json.loads((tmp_path / "performance.json").read_text())["distributed"]
    assert found["failed"] == {}
    cells = found["cells"]["2^10 rows, 1 server, 1 worker"]
    assert set(cells) == {grid.STANDARD, grid.BY_ROW}
    standard, hybrid = cells[grid.STANDARD]["10"], cells[grid.BY_ROW]["10"]
    assert standard["losses"][0] == pytest.approx(hybrid["losses"][0], rel=1e-4)
    assert standard["bytes"] == pytest.approx(standard["predicted_bytes"], rel=0.25)
    assert hybrid["bytes"] < standard["bytes"]


def cell(steps, predicted=1.0):
    figures = {"bytes": 1e6, "predicted_bytes": 2e6, "limit": 200.0, "free": 150.0, "rounds": 3}
    return {**figures, "steps": steps, "predicted_steps": predicted, "losses": [1.0, 1.0]}


def test_the_page_compares_with_the_standard_strategy_and_the_limit():
    cells = {
        "2^19 rows, 2 servers, 1 worker": {
            grid.STANDARD: {"150": cell(0.5)},
            grid.BY_ROW: {"150": cell(100.0, 80.0)},
            grid.BY_COLUMN: {"150": cell(125.0, 100.0)},
        }
    }
    about = dict.fromkeys(("cpu", "simd", "cores", "last_level_cache", "memory_gib"), 1)
    about |= dict.fromkeys(("system", "python", "date", "load_before", "command"), "x")
    w = {"units": 128, "batch_size": 512, "row_length": 200}
    result = {"machine": about | {"versions": {}}, "workload": w, "cells": cells, "failed": {}}
    text = page.section(result, "img")
    assert "| 150 | hybrid by row | 100 | 200 × | 50% |" in text
    assert "| 100 | 125 | +20% | +20% |" in text  # by column a step takes a fifth less time
    assert "| 1 | 2 | 0.50 | 150 | 100 | 80 | 1.25 |" in text


def test_the_cells_of_the_grid_are_distinct():
    names = [f"{s.name}: {strategy}" for s in grid.SETTINGS for strategy in s.strategies]
    assert len(set(names)) == len(names)
