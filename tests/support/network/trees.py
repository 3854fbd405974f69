"""A network with a shape: hosts in namespaces below leaves and pods, and links that are as slow as they are told to be.

                 root
          +-------+-------+            a line is a link, full duplex: each direction has its own shaper
       leaf:l0         leaf:l1         (token bucket, `tc tbf`) and its own queue of QUEUE_S
      +---+---+       +---+---+
    host:a  host:b  host:c  host:d

Every domain is a bridge with one uplink to the bridge of the domain around it. A link has the rate of its own name in
`rates` ("leaf:l1"), or of its level ("leaf", "host"), in bits of Ethernet frames per second; without either it is not
shaped. Without levels all hosts are on one switch. Where rates name "nvl/host", hosts are twice on the network: with
"host" to the bridge of their `nvl` domain, which has no uplink, and with "nvl/host", their NIC, to the domain around
it. A host has one address all the same, and reaches the members of its domain over the fast link.

Congestion control is Linux's default, whatever the machine's is. Retransmission waits 20 ms rather than 200 ms, and an
idle connection keeps its window: a fabric for training loses next to nothing, and tuned hosts do the same.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tests.support.network.namespaces import DROP, NO_OPINION, Network, run_ip, run_tc, why_no_namespaces

MBIT = 10**6
QUEUE_S = 0.02  # how long a full queue takes to drain
BURST_S, BURST_LEAST = 0.002, 5_000  # bytes that leave at once after a pause; three frames at least
_TUNED = "rto_min 20ms congctl cubic"  # of a route
_FRAME_KIND_AT, _IPV4 = 12, 0x0800
_PROTOCOL_AT, _UDP = 23, 17  # in a frame with IPv4
_RANDOM_WORD = 0xFFFFF000 + 56  # what classic BPF loads from there is a random number: SKF_AD_RANDOM


class Carried(NamedTuple):
    """Bytes of frames that a link has carried out of its domain, and into it."""

    out: int
    into: int


class _Link(NamedTuple):
    """Both ends of a link: namespace and interface. What a shaper there lets pass leaves that end."""

    inner: tuple[str, str]
    outer: tuple[str, str]


class TreeNetwork(Network):
    """`hosts`: the path of each, from the outermost of `levels` on."""

    def __init__(
        self, hosts: Mapping[str, Sequence[str]], levels: Sequence[str] = (), rates: Mapping[str, int] | None = None
    ) -> None:
        super().__init__()
        self.levels, self.rates = tuple(levels), dict(rates or {})
        self._links: dict[str, _Link] = {}
        self._bridges: dict[tuple[str, ...], str] = {(): "br0"}
        self._fast = next((level for level in self.levels if f"{level}/host" in self.rates), None)
        self._fast_members: dict[tuple[str, ...], list[str]] = {}
        try:
            for name, path in hosts.items():
                self._place(name, tuple(path))
            for link in self._links:
                rate = self.rates.get(link, self.rates.get(link.partition(":")[0]))
                if rate is not None:
                    self.set_rate(link, rate)
        except BaseException:
            self.__exit__()
            raise

    @property
    def links(self) -> tuple[str, ...]:
        """The names of all links: "leaf:l0", "host:a"."""
        return tuple(self._links)

    def set_rate(self, link: str, rate: int, into: int | None = None) -> None:
        """Shape both directions of a link, also while packets are on it; `into`: where the way in has its own rate."""
        for (namespace, interface), own in zip(self._links[link], (rate, into or rate), strict=True):
            burst = max(BURST_LEAST, int(own / 8 * BURST_S))
            limit = burst + int(own / 8 * QUEUE_S)
            words = f"qdisc replace dev {interface} root tbf rate {own}bit burst {burst} limit {limit}"
            run_tc("-netns", namespace, *words.split())

    def count_carried(self) -> dict[str, Carried]:
        """What every link has carried since it was made; one without a shaper counts headers once per large packet."""
        sent: dict[tuple[str, str], int] = {}
        for namespace in {end[0] for link in self._links.values() for end in link}:
            for one in json.loads(run_ip("-netns", namespace, "-json", "-statistics", "link", "show")):
                sent[namespace, one["ifname"]] = one["stats64"]["tx"]["bytes"]
            for one in json.loads(run_tc("-netns", namespace, "-json", "-statistics", "qdisc", "show")):
                if one["kind"] == "tbf":
                    sent[namespace, one["dev"]] = one["bytes"]
        return {name: Carried(sent[link.inner], sent[link.outer]) for name, link in self._links.items()}

    def lose(self, name: str, share: float) -> None:
        """Drop this share of the packets from a host and of those to it, at random, until `heal`."""
        # load a random word; as large as this: skip the drop
        program = f"4,32 0 0 {_RANDOM_WORD},53 1 0 {int(share * 2**32)},6 0 0 {DROP},6 0 0 {NO_OPINION}"
        self._drop_at_both_sides(name, program)

    def block_udp(self, name: str) -> None:
        """Drop every datagram from and to a host until `heal`."""
        # load the kind of frame, then a byte; equal: next, else skip to the end. In a frame of ARP that byte is one of
        # the sender's address, which is drawn.
        of_ip = f"40 0 0 {_FRAME_KIND_AT},21 0 3 {_IPV4}"
        self._drop_at_both_sides(name, f"6,{of_ip},48 0 0 {_PROTOCOL_AT},21 0 1 {_UDP},6 0 0 {DROP},6 0 0 {NO_OPINION}")

    def _drop_at_both_sides(self, name: str, program: str) -> None:
        for side in ("ingress", "egress"):
            self._drop(name, side, program)

    def _place(self, name: str, path: tuple[str, ...]) -> None:
        namespace = self._namespace(name)
        address = self.host(name).address
        with self.inside(name), open("/proc/sys/net/ipv4/tcp_slow_start_after_idle", "w") as file:
            file.write("0")
        route = f"route change 10.77.0.0/24 dev eth0 proto kernel scope link src {address} {_TUNED}"
        run_ip("-netns", namespace, *route.split())
        nic = _Link((namespace, "eth0"), (self._name, name))
        if self._fast is None:
            self._join(name, path, f"host:{name}", nic)
            return
        self._join(name, path[: self.levels.index(self._fast)], f"{self._fast}/host:{name}", nic)
        port, members = f"fast{len(self._hosts)}", self._fast_members.setdefault(path, [])
        self._in_bridge("link", "add", port, "type", "veth", "peer", "name", "fast0", "netns", namespace)
        run_ip("-netns", namespace, "link", "set", "fast0", "up")
        self._join(name, path, f"host:{name}", _Link((namespace, "fast0"), (self._name, port)))
        for other in members:
            for here, there in ((name, other), (other, name)):
                via = f"route add {self._hosts[there].address} dev fast0 src {self._hosts[here].address} {_TUNED}"
                run_ip("-netns", self._namespace(here), *via.split())
        members.append(name)

    def _join(self, name: str, path: tuple[str, ...], link: str, ends: _Link) -> None:
        """Make the outer end of a host's link a port of this domain's bridge."""
        self._in_bridge("link", "set", ends.outer[1], "master", self._find_bridge(path), "up")
        self._links[link] = ends

    def _find_bridge(self, path: tuple[str, ...]) -> str:
        """The bridge of a domain, made with those around it when it is first asked for."""
        if path not in self._bridges:
            around, number = self._find_bridge(path[:-1]), len(self._bridges)
            level = self.levels[len(path) - 1]
            bridge, inner, outer = f"br{number}", f"up{number}", f"down{number}"
            self._in_bridge("link", "add", bridge, "type", "bridge")
            self._in_bridge("link", "set", bridge, "up")
            if level != self._fast:
                self._in_bridge("link", "add", inner, "type", "veth", "peer", "name", outer)
                self._in_bridge("link", "set", inner, "master", bridge, "up")
                self._in_bridge("link", "set", outer, "master", around, "up")
                self._links[f"{level}:{path[-1]}"] = _Link((self._name, inner), (self._name, outer))
            self._bridges[path] = bridge
        return self._bridges[path]


@functools.cache
def why_no_trees() -> str:
    """Why this machine can make no such network; empty if it can."""
    if why := why_no_namespaces():
        return why
    try:
        with TreeNetwork({"probe": ()}, rates={"host": 10 * MBIT}) as network:
            network.lose("probe", 0.5)
    except OSError as error:
        return f"no shaped links here: {error}"
    return ""
