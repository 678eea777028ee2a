"""The manifests of docs/hybrid: their syntax, and that they describe one cluster."""

import json
import re
import subprocess
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "hybrid"


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
