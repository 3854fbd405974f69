"""What an agent opens to meet the other nodes, and that nothing of it stays open when it cannot join them."""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import closing

import pytest

from launcher.agent.cluster import open_membership
from launcher.agent.membership import NodeMembership, make_settings
from launcher.agent.startup.stale_agents import NodeLock
from launcher.agent.startup.startup import Startup
from launcher.config.credentials import Credentials
from launcher.config.options.network import StoreConfig
from rendezvous import records
from rendezvous.errors import MeshrunError
from rendezvous.records import StoreOwner
from rendezvous.stores.etcd.store import EtcdStore
from tests.store.served import serve
from tests.support.network.namespaces import free_port
from tests.support.options import resolve
from tests.support.waiting import wait_until

pytestmark = pytest.mark.server


def join(port: int, *words: str, serves_at: tuple[str, ...] = ()) -> NodeMembership:
    """Node h1 of run r, which meets the others at this port."""
    endpoint = f"127.0.0.1:{port}"
    config = resolve("--nnodes=2", "--rdzv-id=r", f"--rdzv-endpoint={endpoint}", "--rdzv-backend=c10d", *words)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        startup = Startup(
            network=StoreConfig(backend="served", endpoints=(endpoint,)), credentials=Credentials(), name="h1",
            boot_id="b", address="127.0.0.1", node_lock=NodeLock("", -1, {}), listener=listener, serves_at=serves_at,
        )  # fmt: skip
        return open_membership(
            config,
            make_settings(config.rendezvous, config.workers.max_restarts, config.shutdown.shutdown_timeout_s),
            startup,
            slot_count=1,
            run_id="r",
            worker_port=1,
            wake=lambda: None,
        )


def is_refused(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) != 0


def test_the_store_is_served_until_the_membership_is_closed() -> None:
    port = free_port("127.0.0.1")
    with closing(join(port, serves_at=("127.0.0.1",))) as membership:
        assert not is_refused(port)
        assert membership.elastic_max is None
    assert is_refused(port)


def test_a_store_is_served_no_longer_if_this_node_cannot_join() -> None:
    port = free_port("127.0.0.1")
    with pytest.raises(MeshrunError, match="it must be a number"):
        join(port, "--attempt=1234567890123456", serves_at=("127.0.0.1",))
    assert is_refused(port)


def put_other_run(store: EtcdStore) -> None:
    owner = StoreOwner(prefix="meshrun", run_id="other", node_name="h2", presence_address="")
    store.put(records.STORE_OWNER_KEY, records.encode(owner))


def put_other_version(store: EtcdStore) -> None:
    store.put(records.STORE_OWNER_KEY, b'{"version": "1000.1"}')


@pytest.mark.parametrize(
    ("put", "words", "sentence"),
    [
        (put_other_run, (), "this agent belongs to run r"),
        (put_other_version, (), "uses meshrun 1000.1, but node h1 has meshrun"),
        (lambda store: None, ("--attempt=1234567890123456",), "it must be a number"),
    ],
)
def test_the_store_of_another_agent_has_lost_its_client_if_this_node_cannot_join(
    put: Callable[[EtcdStore], None], words: tuple[str, ...], sentence: str
) -> None:
    with serve() as server:
        with closing(EtcdStore([f"127.0.0.1:{server.port}"])) as store:
            put(store)
        with pytest.raises(MeshrunError, match=sentence):
            join(server.port, *words)
        wait_until(lambda: not server._connections.all, what="the end of the client's connection")
