"""Addresses: how they are written, which one of this node's others can use, and which are of no use to them."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from launcher.agent.startup import addresses
from launcher.hardware.linux import interfaces
from launcher.model.errors import UsageError
from rendezvous.errors import SettingsError
from rendezvous.stores.addresses import is_local_only, join_address, split_address


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [("h:1", "h", 1), ("10.0.0.1:65535", "10.0.0.1", 65535), ("[fd00::1]:80", "fd00::1", 80), ("[::1]:2", "::1", 2)],
)
def test_an_address_is_read_as_it_is_written(text: str, host: str, port: int) -> None:
    assert split_address(text) == (host, port)
    assert join_address(host, port) == text


@pytest.mark.parametrize(
    "text", ["", "h", "h:", ":1", "h:0", "h:65536", "h:-1", "h:x", "h:²", "::1:80", "[]:1", "h:" + "9" * 5000]
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(SettingsError, match="is not HOST:PORT"):
        split_address(text)


@pytest.mark.parametrize(
    ("is_local", "addresses"),
    [
        (True, ["127.0.0.1", "127.8.8.8", "::1", "169.254.1.1", "fe80::1", "FEBF::1", "::ffff:127.0.0.1"]),
        (False, ["10.0.0.1", "192.168.1.1", "fd00::1", "2001:db8::1", "169.253.0.1"]),
    ],
    ids=["loopback and link-local", "of a network"],
)
def test_loopback_and_link_local_alone_are_of_no_use_to_others(is_local: bool, addresses: list[str]) -> None:
    assert [one for one in addresses if is_local_only(one) is not is_local] == []


def test_a_store_on_this_node_is_reached_from_loopback_and_a_name_given_back_in_digits() -> None:
    assert addresses.find_own_address(local_addr=None, interface=None, endpoints=["127.0.0.1:2379"]) == "127.0.0.1"
    for endpoints in (["localhost:2379"], []):
        found = addresses.find_own_address(local_addr="localhost", interface=None, endpoints=endpoints)
        assert found in ("127.0.0.1", "::1")


def test_a_name_that_means_loopback_on_its_own_host_alone_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    places = {
        "head": ["127.0.1.1"],
        "both": ["127.0.1.1", "10.0.0.1"],
        "localhost": ["::1"],
        "localhost.localdomain": ["127.0.0.1"],
        "127.0.0.1": ["127.0.0.1"],
    }

    def look_up(host: str, port: int, **_: object) -> list[tuple[object, ...]]:
        return [(socket.AF_INET, 0, 0, "", (found, port)) for found in places.get(host, [])]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    monkeypatch.setattr(addresses, "find_main_address", lambda: "10.0.0.5")

    def served_at(host: str, local_addr: str | None = None) -> tuple[str, ...]:
        return addresses.find_serving_addresses(f"{host}:29400", local_addr=local_addr, interface=None)

    assert served_at("head") == ("127.0.1.1", "10.0.0.5")
    assert served_at("head", "127.0.0.1") == ("127.0.1.1", "127.0.0.1")
    assert served_at("both") == ("127.0.1.1",)
    assert [served_at(host) for host in ("127.0.0.1", "unknown")] == [("127.0.0.1",), ()]
    assert served_at("localhost.localdomain") == ("127.0.0.1",)
    assert addresses.find_own_address(local_addr=None, interface=None, endpoints=["head:29400"]) == "10.0.0.5"
    assert addresses.find_own_address(local_addr=None, interface=None, endpoints=["127.0.0.1:29400"]) == "127.0.0.1"


def test_a_given_address_wins_over_the_interface_and_that_over_the_route(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(addresses, "find_interface_address", lambda name: f"10.1.1.1 of {name}")
    monkeypatch.setattr(addresses, "find_source_address", lambda endpoint: endpoint and f"10.2.2.2 to {endpoint}")
    for local_addr, interface, endpoints, found in (
        ("10.0.0.9", "eth7", ["s:1"], "10.0.0.9"),
        (None, "eth7", ["s:1"], "10.1.1.1 of eth7"),
        (None, None, ["", "s:1"], "10.2.2.2 to s:1"),
    ):
        assert addresses.find_own_address(local_addr=local_addr, interface=interface, endpoints=endpoints) == found


@pytest.mark.parametrize("given", [{"local_addr": "127.0.0.1"}, {"interface": "lo"}, {}])
def test_loopback_is_refused_for_a_store_on_other_hosts(given: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(addresses, "find_source_address", lambda endpoint: "127.0.0.1")
    choice = {"local_addr": None, "interface": None, **given}
    with pytest.raises(UsageError, match=r"gives 127\.0\.0\.1, which other nodes cannot reach, but 192\.0\.2\.77:2379"):
        addresses.find_own_address(**choice, endpoints=["192.0.2.77:2379"])


def test_an_interface_gives_its_global_address_and_an_unknown_one_is_refused_with_those_that_exist(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert addresses.find_interface_address("lo") == "127.0.0.1"
    with pytest.raises(UsageError, match="LAUNCHER_INTERFACE=nowhere0: no such interface") as refusal:
        addresses.find_interface_address("nowhere0")
    assert "lo" in str(refusal.value.hint)
    table = tmp_path / "if_inet6"
    link, world = "fe80" + "0" * 27 + "1", "fd00" + "0" * 27 + "2"
    table.write_text(f"{link} 02 40 20 80 six0\n{world} 02 40 00 80 six0\n{'0' * 31}1 01 80 10 80 lo\n")
    monkeypatch.setattr(interfaces, "_IF_INET6", str(table))
    assert addresses.find_interface_address("six0") == "fd00::2"  # IPv6 alone


def test_a_host_that_nobody_knows_is_not_here_and_gives_no_address() -> None:
    assert not addresses.is_here("192.0.2.77:1")
    assert addresses.is_here("127.0.0.1:1")
    assert addresses.find_source_address("127.0.0.1:1") == "127.0.0.1"


def test_an_unknown_host_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(UsageError, match="--local-addr nohost: not an address, and no host has that name"):
        addresses.find_own_address(local_addr="nohost", interface=None, endpoints=[])
    assert addresses.find_source_address("nohost:1") == ""


OWN = ("10.0.0.1", "192.168.0.1", "fd00::1", "127.0.1.1", "127.0.0.1", "0.0.0.0", "::1", "::")


@pytest.fixture
def mean(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Let HOST stand for these addresses, on a host n1 whose own addresses are OWN."""
    monkeypatch.setattr(addresses, "_is_own", lambda family, address: address in OWN)
    monkeypatch.setattr(addresses.os, "uname", lambda: SimpleNamespace(nodename="n1"))

    def mean(*found: str) -> None:
        family = {address: socket.AF_INET6 if ":" in address else socket.AF_INET for address in found}
        rows = [(family[address], 0, 0, "", (address, 29400)) for address in found]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: rows)

    return mean


@pytest.mark.parametrize(
    ("found", "other"),
    [
        (["10.0.0.1"], ""),
        (["10.0.0.1", "192.168.0.1"], ""),  # two networks of one host
        (["10.0.0.1", "10.0.0.2"], ""),  # as a headless service: this one is the first of them
        (["10.0.0.2", "10.0.0.1"], ""),  # in whatever order it answers
        (["10.0.0.1", "9.0.0.2"], "9.0.0.2"),
        (["10.0.0.1", "10.0.0.0", "10.0.0.2"], "10.0.0.0"),
        (["192.168.0.1", "100.64.0.7"], "100.64.0.7"),  # numbers, not letters, are compared
        (["fd00::1", "fd00::2"], ""),
        (["fd00::1", "fc00::2"], "fc00::2"),
        (["fd00::1", "10.0.0.1"], ""),
        (["10.0.0.1", "fd00::9"], ""),  # a host without IPv6 whose name has an address of it
        (["10.0.0.1", "10.0.0.0", "fd00::1"], ""),  # and the other way round
    ],
)
def test_of_several_hosts_with_the_name_one_serves(found: list[str], other: str, mean: Callable[..., None]) -> None:
    mean(*found)
    assert addresses.find_other_server("head:29400") == other


@pytest.mark.parametrize(
    ("host", "found", "doubt"),
    [
        ("head", ["127.0.1.1"], "head is 127.0.1.1 on this host, n1: another host where it is loopback, too"),
        ("head.example", ["127.0.0.1", "::1"],
         "head.example is 127.0.0.1 and ::1 on this host, n1: another host where"),
        ("0.0.0.0", ["0.0.0.0"], "0.0.0.0 means every host"),
        ("any", ["::"], "any means every host"),
        ("n1", ["127.0.1.1"], ""),  # as on Debian
        ("N1.example", ["127.0.1.1"], ""),
        ("head", ["10.0.0.1"], ""),
        ("localhost", ["127.0.0.1"], ""),  # nobody takes it for the name of one host
        ("127.0.0.1", ["127.0.0.1"], ""),
    ],
)  # fmt: skip
def test_a_name_that_may_mean_all_is_doubted(
    host: str, found: list[str], doubt: str, mean: Callable[..., None]
) -> None:
    mean(*found)
    assert addresses.describe_doubt(f"{host}:29400").startswith(doubt)
    assert bool(addresses.describe_doubt(f"{host}:29400")) is bool(doubt)
