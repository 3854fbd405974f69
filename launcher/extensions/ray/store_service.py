"""The store of a job, served by the program that starts its agents.

Where one of the agents serves the store, the job ends with that agent's node. A host has a process that lives as long
as the job, outside of the nodes that may be lost: there the store costs nothing more, and every agent is a client of
it, whichever node it is on. A token that is drawn for each job keeps others out.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

from launcher.agent.startup.stores import require
from launcher.model.errors import TemporaryError
from rendezvous.errors import StoreError
from rendezvous.stores.addresses import join_address
from rendezvous.stores.server.server import StoreServer

GRACE_S = 0.5  # for calls in progress, once every agent has ended


class StoreService(NamedTuple):
    """A store that is served for agents."""

    endpoint: str
    options: tuple[str, ...]
    """The options by which agents find it. is_host=0: none of them serves one itself."""
    variables: Mapping[str, str]
    """The variables that agents need to be let in; secret."""


@contextmanager
def serve_store(address: str) -> Iterator[StoreService]:
    """Serve an empty store at `address`, on any free port, in the block of a `with`.

    Raises UsageError if a package is missing, TemporaryError if the store cannot listen there.
    """
    require("grpc")
    require("h2")
    token = secrets.token_hex(16)
    server = StoreServer(address, 0, token=token)
    try:
        server.start()
    except StoreError as error:
        raise TemporaryError(str(error), error.hint) from None
    try:
        endpoint = join_address(address, server.port)
        options = ("--rdzv-backend=c10d", f"--rdzv-endpoint={endpoint}", "--rdzv-conf=is_host=0")
        yield StoreService(endpoint, options, {"LAUNCHER_STORE_TOKEN": token})
    finally:
        server.close(GRACE_S)
