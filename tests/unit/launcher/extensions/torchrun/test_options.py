"""What stock torchrun says of the rendezvous, as options of ours."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass, field

import pytest

from launcher.config.config import Config
from launcher.extensions.torchrun.member import OfferedPort
from launcher.extensions.torchrun.options import adjust_settings, get_worker_count, read_options
from launcher.model.errors import TemporaryError, UsageError
from rendezvous.settings import Settings


@dataclass(frozen=True)
class Told:
    """As torch's RendezvousParameters. `config` has what torchrun adds when nobody gave a time-out."""

    endpoint: str = "etcd-0:2379"
    run_id: str = "job"
    min_nodes: int = 2
    max_nodes: int = 4
    local_addr: str | None = None
    config: dict[str, object] = field(default_factory=lambda: {"timeout": 900})


def told(*, environ: dict[str, str] | None = None, **given: object) -> Config:
    conf = given.pop("conf", {})
    assert isinstance(conf, dict)
    return read_options(Told(config={"timeout": 900, **conf}, **given), environ or {})  # type: ignore[arg-type]


def test_the_endpoint_and_the_settings_of_the_backend_are_torchrun_s() -> None:
    found = told(local_addr="10.0.0.5")
    assert (found.placement.nodes_min, found.placement.nodes_max) == (2, 4)
    network = found.rendezvous.network
    assert network is not None
    assert (network.backend, network.endpoints) == ("etcd", ("etcd-0:2379",))
    assert (found.rendezvous.run_id, found.rendezvous.local_addr) == ("job", "10.0.0.5")
    assert (get_worker_count(found), str(found.placement.grid)) == (None, "dp=*")
    assert "start_timeout_s" not in told().rendezvous.settings
    assert told(conf={"timeout": "900"}).rendezvous.settings["start_timeout_s"] == 900
    conf = {"cacert": "/ca.pem", "user": "trainer", "join_timeout": "60", "last_call_timeout": "3"}
    found = told(conf=conf, endpoint="etcds://a:1,b:2")
    network = found.rendezvous.network
    assert network is not None
    assert (network.uses_tls, network.ca_file, network.user) == (True, "/ca.pem", "trainer")
    assert (found.rendezvous.settings["start_timeout_s"], found.rendezvous.settings["join_grace_s"]) == (
        60,
        3,
    )
    assert network.endpoints == ("a:1", "b:2")


def test_what_torchrun_lacks_comes_from_our_variables_and_it_counts_restarts() -> None:
    environ = {"LAUNCHER_GROW": "delay=7", "LAUNCHER_NODE_NAME": "n1", "PET_NNODES": "9", "PET_STANDALONE": "1"}
    found = told(environ={**environ, "LAUNCHER_NNODES": "8", "LAUNCHER_STANDALONE": "1"})
    assert (found.rendezvous.settings["grow_delay_s"], found.rendezvous.node_name) == (7, "n1")
    assert (found.placement.nodes_min, found.placement.nodes_max) == (2, 4)
    found = adjust_settings(Settings(max_restarts=0, shutdown_timeout_s=5))
    assert min(found.max_restarts, found.no_progress_rounds, found.quarantine_failures) >= 1_000_000
    assert found.get_grace_s("kill") == found.get_grace_s("grace") == 30  # torchrun's, which no option changes


@pytest.mark.parametrize(
    ("conf", "environ"),
    [
        ({"nproc": "8"}, {"PET_NPROC_PER_NODE": "4", "LAUNCHER_NPROC_PER_NODE": "2"}),
        ({}, {"PET_NPROC_PER_NODE": "8", "LAUNCHER_NPROC_PER_NODE": "2"}),
        ({}, {"PET_NPROC_PER_NODE": "gpu", "LAUNCHER_NPROC_PER_NODE": "8"}),
    ],
)
def test_a_node_whose_workers_are_counted_is_not_divided(conf: dict[str, str], environ: dict[str, str]) -> None:
    found = told(conf=conf, environ={**environ, "LAUNCHER_MESH": "dp=*,tp=4"})
    assert (get_worker_count(found), found.placement.texts["unit"]) == (8, "8")
    assert str(found.placement.grid) == "dp=*,tp=4"


@pytest.mark.parametrize(
    ("given", "environ", "words"),
    [
        ({"endpoint": " "}, {}, "--rdzv-backend meshrun needs --rdzv-endpoint"),
        ({"run_id": "none"}, {}, "an etcd rendezvous needs --rdzv-id"),
        ({"endpoint": "etcd-0:many"}, {}, "--rdzv-endpoint etcd-0:many: a port is a number"),
        ({"conf": {"nproc": "0"}}, {}, "--rdzv-conf: nproc=0 is not a number of workers"),
        ({"conf": {"password": "x"}}, {}, "--rdzv-conf: a password on the command line can be read by other users"),
        ({}, {"LAUNCHER_MESH": "dp=*,tp=4"}, "LAUNCHER_MESH=dp=*,tp=4: the number of workers per node is not known"),
        ({"conf": {"nproc": "8"}}, {"LAUNCHER_UNIT": "4"}, "LAUNCHER_UNIT=4: torchrun assigns ranks to whole nodes"),
        ({"conf": {"join_timeout": "soon"}}, {}, "--rdzv-conf: join_timeout=soon is not a number of seconds"),
    ],
)
def test_what_cannot_be_is_refused_in_its_words(given: dict[str, object], environ: dict[str, str], words: str) -> None:
    with pytest.raises(UsageError) as refusal:
        told(environ=environ, **given)
    assert str(refusal.value).startswith(words)


def test_an_offered_port_is_reserved_and_one_of_no_free_range_named() -> None:
    offer = OfferedPort("127.0.0.1", None)
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(("127.0.0.1", offer.number))
    first, taken = offer.number, offer.hand_over()
    offer.renew()
    assert offer.number != first
    with socket.socket(fileno=taken) as server:  # whoever took it can listen
        server.listen()
        socket.create_connection(("127.0.0.1", first)).close()
    offer.close()
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(TemporaryError) as refusal:
            OfferedPort("127.0.0.1", (port, port))
    assert str(refusal.value).startswith(f"cannot open a port of 127.0.0.1 from {port} to {port} for")


def test_the_door_is_light() -> None:
    """torch opens it in every process that imports its elastic library."""
    import subprocess
    import sys

    code = (
        "import sys; from meshrun import handlers; handlers();"
        "names = ('torch', 'grpc', 'numpy', 'rendezvous', 'launcher.config');"
        "print([name for name in names if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=os.getcwd(), timeout=60)
    assert done.stdout.strip() == "[]", done.stderr


def test_the_locality_comes_from_settings_of_the_backend_or_a_variable() -> None:
    west = (("zone", "a"), ("leaf", "west"))
    assert told(conf={"locality": "zone=a/leaf=west"}).locality.locality == west
    assert told(environ={"LAUNCHER_LOCALITY": "zone=a,leaf=west"}).locality.locality == west
    assert told(conf={"locality": "@/shared/places"}).locality.locality == "/shared/places"
    assert (
        told(environ={"LAUNCHER_LOCALITY": "leaf=x"}, conf={"locality": "zone=a/leaf=west"}).locality.locality == west
    )
    assert told(environ={"LAUNCHER_LOCALITY_SOURCES": "none"}).locality.locality_sources == ()
    with pytest.raises(UsageError, match="sets the level leaf twice"):
        told(conf={"locality": "leaf=a/leaf=b"})
