"""Before torchrun's agent is a member: the store is there, this node has an address, and a place to be called at.

The same as in `launcher.arrival`, but for what comes of a warden: torchrun's workers hold neither the listener of this
node's presence nor a lock, so its silence proves that the agent is gone, and says nothing of the workers. And since
they inherit all of torchrun's environment, what is secret is taken out of that.
"""

from __future__ import annotations

import os
from collections.abc import MutableMapping

from launcher import credentials, stores
from launcher.arrival import Arrival, boot_id, listen, wait_for_store
from launcher.arrival.addresses import own_address
from launcher.arrival.predecessors import Place
from launcher.console import tell
from launcher.torchrun_handler.terms import Terms
from rendezvous.settings import Settings

_kept: dict[str, str] = {}  # secrets, for the next job of this process: notebooks start several


def arrive(terms: Terms, environ: MutableMapping[str, str]) -> Arrival:
    """Take the secrets out of `environ`, and this node's place.

    Raises UsageError for what nobody can mend by waiting, TemporaryError when the store does not come in time.
    """
    config, network = terms.config, terms.network
    for note in config.notes:
        tell(note)
    stores.require_grpc()
    _kept.update({name: environ.pop(name) for name in credentials.PRIVATE if name in environ})
    found = credentials.read(network, _kept)
    wait_for_store(network, float(config.terms.get("start_timeout_s", Settings.start_timeout_s)))
    address = own_address(local_addr=config.local_addr, interface=config.interface, endpoints=network.endpoints)
    return Arrival(
        network=network,
        credentials=found,
        name=config.node_name or os.uname().nodename,
        boot_id=boot_id(),
        address=address,
        place=Place("", -1, {}),
        listener=listen(config, address),
        serves_at=(),
    )
