"""The address of this node for the other nodes, and the reason for it."""

from __future__ import annotations

from typing import NamedTuple

from launcher.agent.startup.addresses import find_own_address, find_serving_addresses, is_resolvable
from launcher.agent.startup.startup import listen, require_master_port
from launcher.config.config import Config
from launcher.config.options.network import StoreConfig
from launcher.meshctl.doctor.findings import Finding
from launcher.meshctl.doctor.with_timeout import call_with_timeout
from launcher.model.errors import LauncherError, UsageError
from rendezvous.stores.addresses import is_local_only, join_address, split_address

LIMIT_S = 10.0


class AdvertisedAddress(NamedTuple):
    """`address`: "" where there is none. `findings`: what would stop a job."""

    address: str
    reason: str
    findings: tuple[Finding, ...] = ()


def find_advertised_address(config: Config) -> AdvertisedAddress:
    """Return the address that a run would advertise; name servers have LIMIT_S seconds to resolve the store's."""
    network = config.network
    if network is not None:
        late = f"the way to the store at {', '.join(network.endpoints)} was not found within {LIMIT_S:g} s"
        return call_with_timeout(
            LIMIT_S,
            lambda: _find_network_address(config, network),
            lambda: _make_failure(late, "do the name servers answer?"),
        )
    if config.master_addr is not None:
        return AdvertisedAddress(config.master_addr, f"{config.origins['master_addr']} says so, on one node")
    if config.local_addr is not None:
        return AdvertisedAddress(config.local_addr, f"{config.origins['local_addr']} says so, on one node")
    return AdvertisedAddress("127.0.0.1", "one node needs no other")


def _find_network_address(config: Config, network: StoreConfig) -> AdvertisedAddress:
    store = ", ".join(network.endpoints)
    if config.local_addr is None and config.interface is None and not any(map(is_resolvable, network.endpoints)):
        return AdvertisedAddress("", f"not to be told while {store} cannot be found")
    try:
        serves = find_serving_addresses(network.endpoints[0], local_addr=config.local_addr, interface=config.interface)
        port = split_address(network.endpoints[0])[1]
        endpoints = (join_address(serves[0], port),) if serves else network.endpoints
        address = find_own_address(local_addr=config.local_addr, interface=config.interface, endpoints=endpoints)
    except UsageError as error:
        return _make_failure(str(error), error.hint)
    if config.local_addr is not None:
        reason = f"{config.origins['local_addr']} says so"
    elif config.interface is not None:
        reason = f"the first address of {config.interface} that others can use ({config.origins['interface']})"
    else:
        reason = f"what is sent to the store at {store} leaves from it"
    if is_local_only(address):
        reason += "; nodes on other machines cannot reach it"
    try:
        listen(config, address).close()
    except LauncherError as error:
        return _make_failure(str(error), error.hint)
    try:
        require_master_port(config)
    except LauncherError as error:
        finding = Finding("master-port", "stop", str(error), "workers would not find each other", error.hint or "")
        return AdvertisedAddress(address, reason, (finding,))
    return AdvertisedAddress(address, reason)


def _make_failure(sentence: str, hint: str | None) -> AdvertisedAddress:
    finding = Finding("address", "stop", sentence, "no other node would reach this one", hint or "")
    return AdvertisedAddress("", sentence, (finding,))
