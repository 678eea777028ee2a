"""`LocalCluster`, with programs that need no TensorFlow."""

import json
import os
import signal
import socket
import sys

import pytest

from twml_ops.cli import main
from twml_ops.distribute.launch import EXIT_LOST, LocalCluster, Ports
from twml_ops.distribute.parameter_server.cluster import restrict_port

SERVER = "import signal; signal.pause()"
TIMEOUT = 300  # seconds; only a cluster that hangs needs as much


def cluster(program, tmp_path, servers=1, workers=2, server=SERVER, **options):
    lines = []
    made = LocalCluster(
        [sys.executable, "-c", program, str(tmp_path)],
        servers,
        workers,
        [sys.executable, "-c", server, str(tmp_path)],
        show=lines.append,
        **options,
    )
    return made, lines


def test_every_worker_gets_the_same_cluster_and_its_own_task(tmp_path):
    made, lines = cluster("import os; print(os.environ['TF_CONFIG'])", tmp_path)
    with made:
        assert made.wait(TIMEOUT) == 0
    configs = [json.loads(line.split("] ", 1)[1]) for line in lines]
    assert sorted(c["task"]["index"] for c in configs) == [0, 1]
    assert all(c["cluster"] == made.cluster for c in configs)
    other, more = cluster("import os; print(os.environ['TF_CONFIG'])", tmp_path, workers=1)
    with other:
        assert other.wait(TIMEOUT) == 0
    (start,) = {c["start"] for c in configs}
    assert json.loads(more[0].split("] ", 1)[1])["start"] != start


def test_workers_with_servers_have_all_of_them_one_each_by_default(capsys):
    program = [sys.executable, "-c", "import os; print(os.environ['TF_CONFIG'])"]
    for words, own in (
        (["--workers", "3"], [[0], [1], [2]]),
        (["--workers", "2", "--ps", "3"], [[0, 2], [1]]),
    ):
        main(["launch", *words, "--servers-in-workers", "--", *program])
        configs = [json.loads(x.split("] ", 1)[1]) for x in capsys.readouterr().out.splitlines()]
        tasks = sorted((c["task"] for c in configs), key=lambda task: task["index"])
        assert {task["type"] for task in tasks} == {"worker"}
        assert [task["servers"] for task in tasks] == own
        assert len(configs[0]["cluster"]["ps"]) == sum(map(len, own))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--servers-in-workers", "--ps", "0"], "needs at least one server, got --ps 0"),
        (["--peers", "2", "--ps", "2"], "--ps is for clusters with servers, got --peers as well"),
    ],
)
def test_layouts_without_a_place_for_the_tables_are_refused(words, message, capsys):
    with pytest.raises(SystemExit):
        main(["launch", *words, "--", "train"])
    assert message in capsys.readouterr().err


def test_an_evaluator_is_another_task_that_the_cluster_waits_for(tmp_path):
    os.mkfifo(tmp_path / "meeting")  # opening it waits for the other process
    program = (
        "import json, os, sys\n"
        "task = json.loads(os.environ['TF_CONFIG'])['task']['type']\n"
        "open(sys.argv[1] + '/meeting', {'worker': 'w', 'evaluator': 'r'}[task]).close()\n"
        "print(task, 'ends')"
    )
    made, lines = cluster(program, tmp_path, workers=1, evaluators=1)
    with made:
        assert made.wait(TIMEOUT) == 0
    assert len(made.cluster["evaluator"]) == 1
    assert sorted(lines) == ["[evaluator 0] evaluator ends", "[worker 0] worker ends"]


@pytest.mark.parametrize("end", [f"os._exit({EXIT_LOST})", "os.kill(os.getpid(), 9)"])
def test_tasks_that_die_or_lose_their_cluster_are_restarted(tmp_path, end):
    program = (
        "import os, sys; path = sys.argv[1] + '/was-here'\n"
        f"if not os.path.exists(path):\n    open(path, 'w').close(); {end}"
    )
    made, lines = cluster(program, tmp_path, workers=1)
    with made:
        assert made.wait(TIMEOUT) == 0
    assert [t.restarts for t in made.tasks] == [0, 1]
    assert "restarted" in lines[0]


def test_a_killed_server_is_restarted(tmp_path):
    for name in ("started", "again"):
        os.mkfifo(tmp_path / name)
    server = (
        "import os, signal, sys\n"
        "first, again = (sys.argv[1] + '/' + name for name in ('started', 'again'))\n"
        "known = os.path.exists(first + '-once')\n"
        "open(first + '-once', 'w').close()\n"
        "open(again if known else first, 'w').close()\n"
        "signal.pause()"
    )
    made, _ = cluster("import sys; open(sys.argv[1] + '/again').close()", tmp_path, 1, 1, server)
    with made:
        (tmp_path / "started").open().close()
        os.kill(made.tasks[0].process.pid, signal.SIGKILL)
        assert made.wait(TIMEOUT) == 0  # the worker waits for the second server
        assert made.tasks[0].restarts == 1


@pytest.mark.skipif(sys.platform != "linux", reason="reserving ports works on Linux only")
def test_a_reserved_port_is_not_assigned_again_and_can_be_listened_on():
    reserved, others = Ports(3), Ports(200)
    assert not set(reserved.numbers) & set(others.numbers)
    for port in reserved.numbers:
        with (
            socket.create_server(("127.0.0.1", port)) as server,  # sets SO_REUSEADDR
            socket.create_connection(server.getsockname()),
        ):
            pass
    reserved.close()
    others.close()


def test_a_failure_ends_the_cluster_with_its_status(tmp_path):
    made, lines = cluster("raise SystemExit(3)", tmp_path, workers=1)
    with made:
        assert made.wait(TIMEOUT) == 3
    assert all(t.process.poll() is not None for t in made.tasks)
    assert "failed with status 3" in lines[-1]


def test_restarts_are_limited(tmp_path):
    made, lines = cluster("import os; os.kill(os.getpid(), 9)", tmp_path, 1, 1, max_restarts=2)
    with made:
        assert made.wait(TIMEOUT) == 1
    assert "died 3 times" in lines[-1]


def test_invalid_counts_are_rejected():
    with pytest.raises(ValueError, match="workers"):
        LocalCluster(["true"], 1, 0)
    with pytest.raises(ValueError, match="several workers need"):
        LocalCluster(["true"], 0, 2)
    with pytest.raises(ValueError, match="servers_in_workers needs at least 1 server"):
        LocalCluster(["true"], 0, 1, servers_in_workers=True)
    with pytest.raises(ValueError, match="evaluators need"):
        LocalCluster(["true"], 0, 1, evaluators=1)
    with pytest.raises(ValueError, match="evaluators must"):
        LocalCluster(["true"], 1, 1, evaluators=-1)


@pytest.mark.skipif(sys.platform != "linux", reason="binding to a device works on Linux only")
def test_a_port_of_tensorflow_is_one_of_the_loopback_only_or_a_warning():
    with socket.create_server(("0.0.0.0", 0)) as server:
        port = server.getsockname()[1]
        restrict_port(f"127.0.0.1:{port}")
        assert server.getsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, 16) == b"lo\0"
        socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT).close()
    with socket.create_server(("0.0.0.0", 0)) as server:
        port = server.getsockname()[1]
        with pytest.warns(RuntimeWarning, match=f"port {port} .* all interfaces, without auth"):
            restrict_port(f"192.0.2.1:{port}")
    with pytest.warns(RuntimeWarning, match="its socket was not found"):
        restrict_port("localhost:1")
