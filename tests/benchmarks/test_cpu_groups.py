"""Control groups as the CPUs of hosts: shares, counters, clean-up."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.distributed import cpu_groups, network
from benchmarks.distributed.network import Network, NetworkError

ROOT = Path(__file__).resolve().parents[2]
WHY_NOT = network.unavailable(cpu=True)
needs_groups = pytest.mark.skipif(WHY_NOT is not None, reason=f"no hosts with CPUs: {WHY_NOT}")
# It uses 0.3 seconds of CPU time and then prints the seconds that have passed.
WORK = """
import time
start = time.perf_counter()
while time.process_time() < 0.3:
    pass
print(time.perf_counter() - start)
"""


@pytest.mark.parametrize("share", [0.001, 0.03, 0.07, 0.2, 0.5, 1, 2.5])
def test_a_quota_is_the_share_of_its_period(share):
    quota, period = cpu_groups.quota(share)
    assert quota / period == pytest.approx(share, rel=0.01)
    assert quota >= cpu_groups.MIN_QUOTA_US
    assert cpu_groups.MIN_PERIOD_US <= period <= cpu_groups.MAX_PERIOD_US


@pytest.mark.parametrize("share", [0, -0.5, 0.0001, float("nan")])
def test_a_share_that_the_kernel_does_not_have_is_an_error(share):
    with pytest.raises(ValueError, match="share must be at least 0.001"):
        cpu_groups.quota(share)


def test_without_cgroup_v1_the_error_names_it(monkeypatch, tmp_path):
    monkeypatch.setattr(cpu_groups, "FOLDER", tmp_path)
    with pytest.raises(cpu_groups.CpuGroupError, match=r"cgroup v1 .* cpu and cpuacct.*No such"):
        cpu_groups.CpuGroups("run", ["a"]).create()


def groups_of(pid):
    return cpu_groups.groups(f"{network.PREFIX}-{pid}")


@needs_groups
def test_a_host_gets_at_most_its_share_and_is_charged_for_it():
    with Network(["a", "b"], cpu=True) as net:
        net.cap_cpu(0.25)
        done = subprocess.run(
            net.on("a", [sys.executable, "-c", WORK]), check=True, capture_output=True, text=True
        )
        assert float(done.stdout) > 0.2 / 0.25  # 0.3 without what the period before had left
        used = net.cpu_seconds()
        assert used["a"] >= 0.3
        assert used["b"] == 0


@needs_groups
def test_a_limit_is_lifted():
    with Network(["a"], cpu=True) as net:
        net.cap_cpu(0.25)
        net.cap_cpu(None)
        (group,) = [g for g in groups_of(os.getpid()) if (g / cpu_groups.QUOTA).exists()]
        assert (group / cpu_groups.QUOTA).read_text() == "-1\n"


@needs_groups
def test_groups_are_removed_with_the_processes_in_them():
    with Network(["a"], cpu=True) as net:
        net.cap_cpu(0.05)
        command = net.on("a", ["sh", "-c", "echo ready; exec sleep 100"])
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert process.stdout.readline() == "ready\n"
        assert len(groups_of(os.getpid())) == 2
    assert process.wait() == -signal.SIGKILL
    process.stdout.close()
    assert groups_of(os.getpid()) == []


@needs_groups
def test_the_groups_of_a_killed_run_are_removed_by_the_next_one():
    code = (
        "import os, signal; from benchmarks.distributed.network import Network\n"
        "with Network(['a'], cpu=True): os.kill(os.getpid(), signal.SIGKILL)"
    )
    with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT) as process:
        process.wait()
    assert groups_of(process.pid) != []
    network.remove_stale()
    assert groups_of(process.pid) == []


@needs_groups
def test_a_host_without_a_limit_says_what_it_needs():
    with Network(["a"]) as net, pytest.raises(ValueError, match="cpu=True"):
        net.cap_cpu(0.5)


@needs_groups
def test_groups_that_cannot_be_created_are_an_error_of_the_network(monkeypatch, tmp_path):
    monkeypatch.setattr(cpu_groups, "FOLDER", tmp_path)
    with pytest.raises(NetworkError, match="cgroup v1"), Network(["a"], cpu=True):
        pass
    assert "cgroup v1" in network.unavailable(cpu=True)
