"""Debian's Prometheus for tests: promtool's verdict on files and pages, a server that scrapes and answers queries.

And what examples/monitoring asks of it.
"""

from __future__ import annotations

import json
import os
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.support.stores.etcd import Port
from tests.support.waiting import wait_until

FOLDER = Path(__file__).parents[2] / "examples/monitoring"
START_LIMIT_S = 60.0


def read_board() -> dict[str, Any]:
    board: dict[str, Any] = json.loads((FOLDER / "dashboard.json").read_text())
    return board


def list_queries() -> list[str]:
    """List what the panels of the board ask for, with its variables as they stand there."""
    return [target["expr"] for panel in read_board()["panels"] for target in panel.get("targets", ())]


def run_promtool(*words: str, input: bytes = b"") -> str:
    """Run promtool, which must be content; return what it prints."""
    done = subprocess.run(["promtool", *words], input=input, capture_output=True, timeout=60, check=False)
    said = (done.stdout + done.stderr).decode()
    assert done.returncode == 0, said
    return said


class PrometheusServer:
    """Scrapes these targets (HOST:PORT) every second. `rules`: files of rules.

    It dies with the thread that starts it.
    """

    def __init__(self, directory: Path, targets: Sequence[str], rules: Sequence[Path] = ()) -> None:
        self._directory = directory
        self._port = Port("127.0.0.1")
        self._process: subprocess.Popen[bytes] | None = None
        config = {
            "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(path) for path in rules],
            "scrape_configs": [{"job_name": "meshrun", "static_configs": [{"targets": list(targets)}]}],
        }
        directory.mkdir(parents=True)
        (directory / "prometheus.yml").write_text(json.dumps(config))  # JSON is YAML

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Return the result of an instant query: a list of {"metric": labels, "value": [time, text]}."""
        answer = self._get(f"/api/v1/query?{urllib.parse.urlencode({'query': expression})}")
        assert answer["status"] == "success", answer
        result: list[dict[str, Any]] = answer["data"]["result"]
        return result

    def wait_for(self, expression: str, limit_s: float = 30.0) -> float:
        """Wait until a query has a sample; return its value."""
        result = wait_until(lambda: self.query(expression), limit_s, f"{expression}: {self.list_targets()}")
        return float(result[0]["value"][1])

    def list_rules(self) -> list[tuple[str, str]]:
        """Return the name of each rule, and how its last evaluation went: "ok", "err", "unknown" before."""
        groups = self._get("/api/v1/rules")["data"]["groups"]
        return [(rule["name"], rule["health"]) for group in groups for rule in group["rules"]]

    def list_targets(self) -> list[tuple[str, str]]:
        """Return the health of each target, and its last error."""
        targets = self._get("/api/v1/targets")["data"]["activeTargets"]
        return [(target["health"], target["lastError"]) for target in targets]

    def _get(self, path: str) -> dict[str, Any]:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(f"http://127.0.0.1:{self._port.number}{path}", timeout=10) as answer:
            found: dict[str, Any] = json.load(answer)
        return found

    def _is_ready(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self._directory / "log").read_text()
        try:
            self._get("/api/v1/targets")
        except OSError:
            return False
        return True

    def __enter__(self) -> PrometheusServer:
        command = [
            *("setpriv", "--pdeathsig", "KILL", "prometheus", "--config.file", str(self._directory / "prometheus.yml")),
            *("--storage.tsdb.path", str(self._directory / "data")),
            *("--web.listen-address", f"127.0.0.1:{self._port.number}"),
        ]
        with (self._directory / "log").open("wb") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={"PATH": os.environ.get("PATH", ""), "GOMAXPROCS": "1"},
            )
        wait_until(self._is_ready, START_LIMIT_S, "Prometheus")
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._port.socket.close()
