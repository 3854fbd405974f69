"""`meshctl measure` that is told to end: nothing of it stays in the store, so that the others go on at once."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.support.stores.etcd import EtcdServer
from tests.support.waiting import wait_until

MEASURE = (sys.executable, "-m", "launcher.meshctl.main", "measure", "run", "--nnodes", "2", "--insist")
LIMIT_S = 60.0
NOHUP = ("sh", "-c", 'trap "" HUP; exec "$@"', "sh")


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    with EtcdServer("3.5", tmp_path_factory.mktemp("etcd")) as server:
        yield server


@pytest.mark.parametrize(
    ("before", "signums", "exit_code"),
    [((), [signal.SIGINT], 130), ((), [signal.SIGHUP], 129), (NOHUP, [signal.SIGHUP, signal.SIGTERM], 143)],
    ids=["SIGINT", "SIGHUP", "SIGHUP ignored"],
)
def test_one_that_is_told_to_end_leaves_the_store_at_once(
    etcd: EtcdServer, before: tuple[str, ...], signums: list[int], exit_code: int
) -> None:
    def list_keys() -> str:
        return etcd.ctl("get", "--prefix", "--keys-only", "/meshrun/run/measure/").strip()

    words = (*before, *MEASURE, "--rdzv-endpoint", etcd.endpoint, "--local-addr", "127.0.0.1")
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as process:
        wait_until(lambda: list_keys() or process.poll() is not None, LIMIT_S, "a member")
        for signum in signums:
            process.send_signal(signum)
        stderr = process.communicate(timeout=LIMIT_S)[1]
    assert (process.returncode, list_keys()) == (exit_code, "")
    assert "Traceback" not in stderr
