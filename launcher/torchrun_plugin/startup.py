"""The startup of a member inside torchrun's agent: it finds the store, and this node's address and listener.

The same as in `launcher.agent.startup`, except for the supervisor's part: torchrun's workers hold neither the
listener of this node's presence nor a lock, so its closing proves that the agent has ended, and nothing about the
workers. And since they inherit all of torchrun's environment, the secrets are removed from that.
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
    """Remove the secrets from `environ`, and start this node.

    Raises UsageError for what waiting cannot fix, TemporaryError when the store does not answer in time.
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
