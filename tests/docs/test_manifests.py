"""The manifests of a cluster and the container file: their syntax, and that they fit."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import typer
import yaml

from tests.peers.jobs import TIMEOUT, needs_mpi
from twml_ops.peers.launch import mpirun_command

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs" / "parameter_server"


def containers():
    manifest = json.loads((FOLDER / "kubernetes.json").read_text(encoding="utf-8"))
    for item in manifest["items"]:
        if "template" in item["spec"]:
            yield item["spec"], item["spec"]["template"]["spec"]["containers"][0]


@pytest.mark.parametrize("name", ["kubernetes.json", "vertex.json"])
def test_manifests_are_json(name):
    assert json.loads((FOLDER / name).read_text(encoding="utf-8"))


def test_every_kubernetes_object_has_a_kind_and_a_name():
    manifest = json.loads((FOLDER / "kubernetes.json").read_text(encoding="utf-8"))
    for item in manifest["items"]:
        assert item["apiVersion"]
        assert item["kind"]
        assert item["metadata"]["name"]


@pytest.mark.parametrize(("position", "index"), [(0, 1), (1, 1), (2, 0)])
def test_the_shell_line_sets_a_tf_config_of_all_tasks(position, index):
    spec, container = list(containers())[position]
    line = re.sub(r"&& exec .*", '&& echo "$TF_CONFIG"', container["command"][2])
    env = {"HOSTNAME": "ranking-ps-1", "JOB_COMPLETION_INDEX": str(index)}
    text = subprocess.run(["/bin/bash", "-c", line], env=env, capture_output=True, check=True)
    config = json.loads(text.stdout)
    assert config["task"] == {"type": container["name"], "index": index}
    count = spec.get("replicas") or spec["completions"]
    assert len(config["cluster"][container["name"]]) == count


def test_vertex_has_a_chief_workers_servers_and_an_evaluator():
    pools = json.loads((FOLDER / "vertex.json").read_text(encoding="utf-8"))["jobSpec"][
        "workerPoolSpecs"
    ]
    assert [p["replicaCount"] for p in pools] == [1, 2, 2, 1]


def container_instructions():
    """The instructions of the container file, without comments, in which lines are joined."""
    text = (ROOT / "docker" / "serve.Dockerfile").read_text(encoding="utf-8")
    text = re.sub(r"^#.*\n", "", text, flags=re.M).replace("\\\n", " ")
    return [line.split(None, 1) for line in text.splitlines() if line.strip()]


def test_the_container_file_has_known_instructions_and_copies_what_is_there():
    known = {"FROM", "RUN", "WORKDIR", "COPY", "USER", "ENV", "EXPOSE", "STOPSIGNAL"}
    known |= {"HEALTHCHECK", "ENTRYPOINT", "CMD"}
    instructions = container_instructions()
    assert {name for name, _ in instructions} <= known
    assert instructions[0][0] == "FROM"
    copied = [words.split()[:-1] for name, words in instructions if name == "COPY"]
    sources = [s for words in copied if not words[0].startswith("--") for s in words]
    assert "twml_ops" in sources
    assert [s for s in sources if not (ROOT / s).exists()] == []


def test_the_shell_lines_of_the_container_file_are_shell():
    for name, words in container_instructions():
        if name == "RUN":
            subprocess.run(["/bin/bash", "-n", "-c", words], check=True)


def test_the_command_of_the_container_is_understood():
    from twml_ops.cli.app import app

    found = dict(container_instructions())
    words = json.loads(found["ENTRYPOINT"]) + json.loads(found["CMD"])
    assert words[:2] == ["twml-ops", "serve"]
    command = typer.main.get_command(app).commands["serve"]
    options = command.make_context("serve", words[2:]).params
    assert options["host"] == "0.0.0.0"
    ports = [options[name] for name in ("grpc_port", "rest_port", "health_port")]
    assert found["EXPOSE"].split() == [str(port) for port in ports]
    health = json.loads(found["HEALTHCHECK"].partition("CMD ")[2])
    assert f":{options['health_port']}/readyz" in health[-1]
    compile(health[-1], "the health check", "exec")


def test_the_container_installs_what_the_extra_needs():
    extras = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    (block,) = re.findall(r"^serve = \[(.*?)\]", extras, re.M | re.S)
    needed = {name.replace("_", "-") for name in re.findall(r'"([\w-]+)>=', block)}
    lines = (ROOT / "requirements" / "serve.txt").read_text(encoding="utf-8").splitlines()
    installed = {line.replace("_", "-") for line in lines if not line.startswith(("#", "-c"))}
    assert needed | {"numpy", "typer"} == installed


GUIDE = (ROOT / "docs" / "peers.md").read_text(encoding="utf-8")


def mpi_job():
    [text] = re.findall(r"^```yaml\n(.*?)^```", GUIDE, re.S | re.M)
    return yaml.safe_load(text)


def command_of(job):
    [launcher] = job["spec"]["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["containers"]
    return launcher["command"]


def test_the_job_of_the_mpi_operator_starts_a_rank_on_each_worker():
    job = mpi_job()
    assert (job["apiVersion"], job["kind"]) == ("kubeflow.org/v2beta1", "MPIJob")
    replicas = job["spec"]["mpiReplicaSpecs"]
    [launcher] = replicas["Launcher"]["template"]["spec"]["containers"]
    [worker] = replicas["Worker"]["template"]["spec"]["containers"]
    assert replicas["Launcher"]["replicas"] == 1
    assert worker["image"] == launcher["image"]
    ranks = replicas["Worker"]["replicas"] * job["spec"]["slotsPerWorker"]
    command = command_of(job)
    assert int(command[command.index("-n") + 1]) == ranks


[MPIRUN] = re.findall(r"^ +(mpirun .*)", GUIDE, re.M)


@needs_mpi
@pytest.mark.one_tf
@pytest.mark.parametrize("command", [command_of(mpi_job()), shlex.split(MPIRUN)])
def test_the_commands_of_mpirun_start_ranks_that_exchange_vectors(command, tmp_path):
    (tmp_path / "hosts").write_text("localhost slots=8\n")
    (tmp_path / "my_training.py").write_text(
        "from twml_ops import peers\n"
        "group = peers.PeerGroup()\n"
        "vector = peers.SharedVector.create([1], group=group)\n"
        "vector.value += 1\n"
        "vector.exchange('sum')\n"
        "print('sum', vector.value[0])\n"
    )
    [mpirun, *_], environment = mpirun_command(["true"], 1)
    words = ["hosts" if word == "/etc/mpi/hostfile" else word for word in command[1:-2]]
    found = subprocess.run(
        [mpirun, *words, sys.executable, command[-1]],
        cwd=tmp_path,
        env={**os.environ, **environment, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
    )
    ranks = int(command[command.index("-n") + 1])
    assert found.stdout.split("\n").count(f"sum {ranks:.1f}") == ranks, found.stdout + found.stderr
