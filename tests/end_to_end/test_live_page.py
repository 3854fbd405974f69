"""The live page of real jobs: by `--serve` in the leader, and by `meshctl serve` beside it."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import sys
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from launcher.views.run_view import RankView
from tests.support.jobs.multi_node import Cluster
from tests.support.jobs.single_node import Command, Job
from tests.support.network.namespaces import loopback_hosts
from tests.support.page.browser import PHONE, Window, needs_browser
from tests.support.processes.tree import REPOSITORY
from tests.support.stores.etcd import EtcdServer
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from playwright.sync_api import Browser

N1, N2 = loopback_hosts(2)
WORK = """
from launcher.worker import progress
def load():
    signal.pause()
progress(7 + RANK)
print("<script>document.title = 'owned'</script> of rank", RANK, flush=True)
mark("up")
load()
"""
ADDRESS = re.compile(r"live page: (http://127\.0\.0\.1:\d+/)")


class Served(Command):
    """`meshctl serve` with these words, in a directory of its own."""

    def __init__(self, directory: Path, *words: object) -> None:
        directory.mkdir()
        command = [sys.executable, "-m", "launcher.meshctl.main", "serve", *map(str, words)]
        super().__init__(directory, command, {**os.environ, "PYTHONPATH": str(REPOSITORY)})

    @property
    def url(self) -> str:
        return wait_until(lambda: self.stdout.strip(), 60, "the page's address")


def read(url: str, path: str) -> Any:
    with urllib.request.urlopen(url + path, timeout=30) as answer:
        return json.loads(answer.read())


def find_page(job: Job) -> str:
    return wait_until(lambda: ADDRESS.search(job.stderr), 60, "the page's address")[1]


def test_the_agent_of_a_job_serves_its_page_until_it_ends(tmp_path: Path) -> None:
    script = WORK.replace("    signal.pause()", "    wait_for('go')")
    options = ("--nproc-per-node=4", "--mesh=dp=*,tp=2", "--serve=0", f"--log-dir={tmp_path / 'logs'}", "--redirects=3")
    with Job(tmp_path, *options, script=script) as job:
        job.marks("up", range(4))
        url = find_page(job)
        step_at = RankView.__struct_fields__.index("step")
        steps = lambda: [row[step_at] for row in read(url, "api/run")["nodes"][0]["ranks"]]  # noqa: E731
        wait_until(lambda: steps() == [7, 8, 9, 10], 20, "the steps of all ranks")
        run = read(url, "api/run")
        assert (run["phase"], run["mesh"], run["shape"], run["world_size"]) == ("running", "dp=*,tp=2", [2, 2], 4)
        page = read(url, "api/logs?node=&rank=2")
        assert "".join(chunk["data"] for chunk in page["chunks"]).strip().endswith("of rank 2")
        assert "round 1 starts: 4 ranks on 1 node" in " ".join(
            row["sentence"] for row in read(url, "api/run")["event_rows"]
        )
        assert "in load" in " ".join(read(url, "api/why")["answer"]["sentences"]) or read(url, "api/why")["stacks"]
        (tmp_path / "go").touch()
        assert job.wait().exit_code == 0
        with pytest.raises(OSError, match="refused"):
            read(url, "api/run")


def test_meshctl_serves_and_saves_a_job_whose_own_page_found_its_port_taken(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        job = Job(tmp_path, "--nproc-per-node=2", f"--serve={port}", script=WORK)
        with job:
            job.marks("up", range(2))
            job.says(f"--serve cannot listen on 127.0.0.1:{port}: the port is taken by pid {os.getpid()} (")
            with Served(tmp_path / "meshctl", job.pid) as served:
                assert [row[0] for row in read(served.url, "api/run")["nodes"][0]["ranks"]] == [0, 1]
                served.says("hint: from another machine: ssh -N -L ")
                with Served(tmp_path / "second", job.pid, "--listen", port) as second:
                    ended = second.wait()
                    assert (ended.exit_code, ended.stdout) == (75, "")
                    assert f"the port is taken by pid {os.getpid()} (" in ended.stderr
                target = tmp_path / "evidence.html"
                with Served(tmp_path / "saving", job.pid, "--save", target) as saved:
                    ended = saved.wait()
                    assert (ended.exit_code, ended.stderr) == (0, "")
                    assert ended.stdout.startswith(f"{target}: ")
                found = re.search(r'id="saved">(.*?)</script>', target.read_text(), re.DOTALL)
                assert found
                assert "ranks 0, 1: " in json.loads(found[1])["why"]["stacks"]
                job.send(signal.SIGKILL)
                wait_until(lambda: read(served.url, "api/run")["problem"], 20, "that the agent is gone")
                assert len(read(served.url, "api/run")["nodes"]) == 1
                served.send(signal.SIGINT)
                assert served.wait().exit_code == 0


def test_the_page_goes_with_the_leadership(tmp_path: Path, etcd: EtcdServer) -> None:
    options = ("--nnodes=1:2", "--nproc-per-node=2", "--target-nodes=2", "--serve=0")
    with Cluster(tmp_path, *options, etcd=etcd) as job:
        job.begin(N1, N2, workers=4)
        leader = wait_until(lambda: next((host for host in (N1, N2) if ADDRESS.search(job[host].stderr)), None), 60)
        other = N2 if leader is N1 else N1
        run = wait_until(lambda: (one := read(find_page(job[leader]), "api/run"))["world_size"] == 4 and one, 20)
        assert {node["state"] for node in run["nodes"]} == {"running"}
        assert ADDRESS.search(job[other].stderr) is None
        job[leader].kill()
        assert read(find_page(job[other]), "api/run")["leader"]


@needs_browser
def test_a_real_job_in_a_browser(tmp_path: Path, browser: Browser) -> None:
    from playwright.sync_api import expect

    options = ("--nproc-per-node=4", "--mesh=dp=*,tp=2", "--serve=0", f"--log-dir={tmp_path / 'logs'}", "--redirects=3")
    with Job(tmp_path, *options, script=WORK) as job:
        job.marks("up", range(4))
        window = Window(browser, PHONE, "dark")
        page = window.page
        page.goto(find_page(job))
        page.click("i[data-rank='3']")
        expect(page.locator("#detail-title")).to_have_text("Rank 3")
        expect(page.locator("#log")).to_contain_text("<script>document.title = 'owned'</script> of rank 3")
        page.click("#ask-stack")
        expect(page.locator("#own-stack")).to_contain_text("load", timeout=30_000)
        page.keyboard.press("Escape")
        expect(page.locator("#facts")).to_contain_text("round 1 runs 4 ranks on 1 node")
        expect(page.locator("#rows")).to_contain_text("dp=2, tp=2")
        assert page.title() != "owned"
        assert window.faults == []
        assert window.overflow() == 0
