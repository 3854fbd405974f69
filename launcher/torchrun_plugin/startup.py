"""Before torchrun's agent is a member: the store is there, this node has an address, and a place to be called at.

The same as in `launcher.agent.startup`, but for what comes of a supervisor: torchrun's workers hold neither the
listener of this node's presence nor a lock, so its silence proves that the agent is gone, and says nothing of the
workers. And since they inherit all of torchrun's environment, what is secret is taken out of that.
"""

from __future__ import annotations

import os
from collections.abc import MutableMapping

from launcher.agent import stores
from launcher.agent.startup.addresses import find_own_address
from launcher.agent.startup.stale_agents import NodeLock
from launcher.agent.startup.startup import Startup, listen, read_boot_id, wait_for_store
from launcher.config import credentials, scrub
from launcher.model.console import log
from launcher.torchrun_plugin.options import TorchrunOptions
from rendezvous.settings import Settings

_secrets: dict[str, str] = {}  # secrets, for the next job of this process: notebooks start several


def start_up(options: TorchrunOptions, environ: MutableMapping[str, str]) -> Startup:
    """Take the secrets out of `environ`, and this node's place.

    Raises UsageError for what nobody can mend by waiting, TemporaryError when the store does not come in time.
    """
    config, network = options.config, options.network
    for note in config.notes:
        log(note)
    stores.require_grpc()
    _secrets.update({name: environ.pop(name) for name in scrub.PRIVATE if name in environ})
    found = credentials.read(network, _secrets)
    wait_for_store(network, float(config.settings.get("start_timeout_s", Settings.start_timeout_s)))
    address = find_own_address(local_addr=config.local_addr, interface=config.interface, endpoints=network.endpoints)
    return Startup(
        network=network,
        credentials=found,
        name=config.node_name or os.uname().nodename,
        boot_id=read_boot_id(),
        address=address,
        node_lock=NodeLock("", -1, {}),
        listener=listen(config, address),
        serves_at=(),
    )
