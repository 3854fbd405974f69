"""Servers that say where a node stands: each cloud's as documented, and every one as it should not be."""

from __future__ import annotations

from typing import Any

import pytest

from launcher.hardware.metadata_server import NoAnswer, Server
from launcher.locality import clouds
from launcher.locality.clouds import CLOUDS, CloudSource
from launcher.locality.contract import Hints
from tests.support.network.metadata_servers import (
    AMAZON_TOKEN,
    Answering,
    Request,
    amazon,
    dripping,
    pages,
    reply,
    serving,
    silence,
)

LIMIT_S = 20.0  # for servers that answer
SHORT_S = 0.15  # for those that do not


@pytest.fixture(autouse=True)
def on_a_busy_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers that answer have all the time they need."""
    monkeypatch.setattr(clouds.metadata, "LIMIT_S", LIMIT_S)


def levels(hints: Hints) -> dict[str, str]:
    return {level.name: level.domain for level in hints.levels}


def look(cloud: str, answer: Answering, **words: Any) -> tuple[Hints, list[Request]]:
    with serving(answer) as server:
        return CloudSource(cloud, address=server.address, **words).look({}, LIMIT_S), server.requests


# What every server may do


@pytest.mark.parametrize(
    ("answer", "clause"),
    [
        (lambda _: [b"what?\r\n\r\n"], "returned a response that is not HTTP"),
        (lambda _: [], "returned a response that is not HTTP"),
        (lambda _: [b"HTTP/1.1 200 fine\r\nContent-Length: 9\r\n\r\nfour"], "closed the connection within its answer"),
        (lambda _: [b"HTTP/1.1 200 fine\r\n" + b"X-A: b\r\n" * 200], "returned a response that is not HTTP"),
        (lambda _: reply(b"\xff\xfe\x00"), "returned a response that is not text"),
        (lambda _: reply("x" * 70_000), "returns more than 64 KiB"),
        (lambda _: [b"HTTP/1.1 200 fine\r\n\r\n", *[b"x" * 10_000] * 20], "returns more than 64 KiB"),
        (lambda _: [b"HTTP/1.1 100 go on\r\n\r\n" * 10_000], "answers without end"),
    ],
)
def test_what_is_no_answer_is_said_in_a_clause(answer: Answering, clause: str) -> None:
    with serving(answer) as server, pytest.raises(NoAnswer) as refused:
        Server(server.address, LIMIT_S).ask("/", {})
    assert str(refused.value) == clause


@pytest.mark.parametrize("content", [b"H", b"HTTP/1.1 200 fine\r\nX-A: b\r\n\r\nbody"])
def test_a_server_that_drips_is_left_at_the_limit(content: bytes) -> None:
    with serving(dripping(content)) as server, pytest.raises(NoAnswer, match=r"does not answer within 0\.15 s"):
        Server(server.address, SHORT_S).ask("/", {})


def test_the_limit_is_for_all_questions_together() -> None:
    with silence() as address:
        server = Server(address, SHORT_S)
        with pytest.raises(NoAnswer, match="does not answer within"):
            server.ask("/first", {})
        with pytest.raises(NoAnswer, match="does not answer within"):
            server.ask("/second", {})
        with pytest.raises(TimeoutError):
            server.require_remaining_s()


def test_a_redirect_is_an_answer_and_is_not_followed() -> None:
    with serving(pages({"/there": "secret"})) as other:
        host, port = other.address
        with serving(lambda _: reply("", 302, Location=f"http://{host}:{port}/there")) as server:
            assert Server(server.address, LIMIT_S).ask("/", {}).status == 302
        assert not other.requests


def test_an_answer_in_chunks_is_put_together() -> None:
    chunks = [b"HTTP/1.1 200 fine\r\nTransfer-Encoding: chunked\r\n\r\n", b"3\r\nabc\r\n", b"2\r\nde\r\n0\r\n\r\n"]
    with serving(lambda _: chunks) as server:
        assert Server(server.address, LIMIT_S).ask("/", {}).text == "abcde"


def test_no_proxy_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(pages({})) as proxy, serving(pages({"/": "direct"})) as server:
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "https_proxy"):
            monkeypatch.setenv(name, "http://{}:{}".format(*proxy.address))
        assert Server(server.address, LIMIT_S).ask("/", {}).text == "direct"
        assert not proxy.requests


@pytest.mark.parametrize("cloud", CLOUDS)
def test_a_server_that_is_silent_or_gone_gives_a_reason_and_no_levels(cloud: str) -> None:
    with silence() as address:
        source = CloudSource(cloud, address=address)
        silent = source.look({}, SHORT_S)
    gone = source.look({}, LIMIT_S)
    assert not silent.levels + gone.levels
    assert silent.reason.startswith("the metadata server does not answer within 0.15 s")
    assert gone.reason.startswith("the metadata server refuses connections")


@pytest.mark.parametrize("cloud", CLOUDS)
@pytest.mark.parametrize(
    "answer",
    [
        lambda _: reply("<html>a portal of a hotel</html>", Metadata_Flavor="Google"),
        lambda _: reply("[" * 50_000, Metadata_Flavor="Google"),
        lambda _: reply("[1]", Metadata_Flavor="Google"),
        lambda _: reply({name: ["x"] for name in ("location", "zone", "tagsList", "block", *clouds._OCI_RDMA)},
                        Metadata_Flavor="Google"),
        lambda _: reply("\0\1", Metadata_Flavor="Google"),
        lambda _: reply("", Metadata_Flavor="Google"),
        lambda _: reply("", 302, Location="http://127.0.0.1:1/", Metadata_Flavor="Google"),
        lambda _: reply("", 404, Metadata_Flavor="Google"),
    ],
)  # fmt: skip
def test_nonsense_gives_a_reason_and_nothing_else(cloud: str, answer: Answering) -> None:
    hints, _ = look(cloud, answer)
    assert hints.reason
    assert hints.reason.isprintable()
    assert all(domain.isprintable() and domain for domain in levels(hints).values())


# Amazon

PLACES = {"region": "us-west-2", "availability-zone": "us-west-2a", "availability-zone-id": "usw2-az1"}


def imds(places: dict[str, str], token: str = AMAZON_TOKEN) -> Answering:
    return amazon({f"placement/{key}": place for key, place in places.items()}, token)


def test_amazon_tells_region_and_zone_and_no_switches() -> None:
    hints, requests = look("aws", imds(PLACES))
    assert levels(hints) == {"region": "us-west-2", "zone": "us-west-2a"}
    assert [level.origin for level in hints.levels] == ["placement/region", "placement/availability-zone"]
    assert "it knows no switches: `aws ec2 describe-instance-topology`" in hints.reason
    assert [request.method for request in requests] == ["PUT", "GET", "GET"]


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (imds(PLACES, token="another"), "the metadata server answers 401 to placement/region"),
        (lambda _: reply("", 403), "the metadata server refused a token with status 403: it is turned off"),
        (lambda _: reply("two words"), "the metadata server returned an invalid token"),
        (lambda _: reply("a\r\nX-Evil:1"), "the metadata server returned an invalid token"),
        (
            lambda request: reply(AMAZON_TOKEN if "token" in request.path else "x" * 300),
            "placement/region is not a valid name",
        ),
    ],
)
def test_amazon_s_server_refuses_or_rambles(answer: Answering, reason: str) -> None:
    hints, _ = look("aws", answer)
    assert not hints.levels
    assert reason in hints.reason
    assert AMAZON_TOKEN not in hints.reason


def test_silence_at_amazon_names_the_hop_limit() -> None:
    with silence() as address:
        assert "hop limit must be 2" in CloudSource("aws", address=address).look({}, SHORT_S).reason


def test_amazon_s_own_switch_turns_the_questions_off() -> None:
    with serving(imds(PLACES)) as server:
        hints = CloudSource("aws", address=server.address).look({"AWS_EC2_METADATA_DISABLED": "true"}, LIMIT_S)
        assert not server.requests
    assert hints == Hints((), "AWS_EC2_METADATA_DISABLED is set")


# Google

INSTANCE = "/computeMetadata/v1/instance"
ZONE = {f"{INSTANCE}/zone": "projects/415/zones/us-central1-a"}
PLACE = {f"{INSTANCE}/attributes/physical_host": "/9d1c77aa/5f3b0e6c/a3e49b12"}
TOPOLOGY = {"cluster": "us-central1-c1", "block": "9d1c77aa", "subblock": "5f3b0e6c", "host": "a3e49b12"}


GOOGLES_ZONE = {"region": "us-central1", "zone": "us-central1-a"}


@pytest.mark.parametrize(
    ("paths", "below", "asked"),
    [
        (PLACE, {"spine": "9d1c77aa", "leaf": "5f3b0e6c"}, 3),
        (
            {**PLACE, f"{INSTANCE}/attributes/physical_host_topology": TOPOLOGY},
            {"core": "us-central1-c1", "spine": "9d1c77aa", "leaf": "5f3b0e6c"},
            2,
        ),
        ({}, {}, 3),
    ],
    ids=["the physical host", "its topology counts before it", "no place"],
)
def test_google_tells_the_zone_and_the_physical_host(paths: dict[str, Any], below: dict[str, str], asked: int) -> None:
    hints, requests = look("gce", pages({**ZONE, **paths}, Metadata_Flavor="Google"))
    assert levels(hints) == {**GOOGLES_ZONE, **below}
    assert len(requests) == asked
    assert all(request.headers["metadata-flavor"] == "Google" for request in requests)
    assert ("GKE hides it" in hints.reason) == (not below)
    if paths == PLACE:
        assert hints.levels[-1].origin == "instance/attributes/physical_host: second part"


def test_whoever_does_not_say_that_he_is_google_is_not_believed() -> None:
    hints, requests = look("gce", pages({**ZONE, **PLACE}))
    assert hints == Hints((), "the metadata server is not Google's")
    assert len(requests) == 1


# Microsoft

COMPUTE = {"location": "EastUS", "zone": "1", "platformFaultDomain": "0", "placementGroupId": "c6c749e8"}
IDS = {"interconnectGroupId": "2deed8b4", "interconnectSubgroupId": "0f0ba375"}
TAG = {"tagsList": [{"name": "team", "value": "a"}, {"name": "Platform_Interconnect_Group", "value": "group-123"}]}


def azure_server(compute: dict[str, Any], *, knows: str = "2025-11-11") -> Answering:
    def answer(request: Request) -> list[bytes]:
        if request.headers.get("metadata", "").lower() != "true" or "x-forwarded-for" in request.headers:
            return reply({"error": "Bad request. Required metadata header not specified"}, 400)
        if request.path.partition("api-version=")[2] > knows:
            return reply({"error": "Bad request", "newest-versions": [knows]}, 400)
        return reply(compute) if request.path.startswith("/metadata/instance/compute?") else reply("", 404)

    return answer


def test_azure_tells_location_zone_and_interconnect_group() -> None:
    hints, requests = look("azure", azure_server({**COMPUTE, **IDS, **TAG}))
    assert levels(hints) == {"region": "eastus", "zone": "eastus-1", "spine": "2deed8b4", "leaf": "0f0ba375"}
    assert len(requests) == 1


def test_an_older_azure_is_asked_in_its_own_version_and_has_a_tag() -> None:
    hints, requests = look("azure", azure_server({**COMPUTE, **TAG}, knows="2021-12-13"))
    assert levels(hints) == {"region": "eastus", "zone": "eastus-1", "leaf": "group-123"}
    assert hints.levels[-1].origin == "tagsList: Platform_Interconnect_Group"
    assert len(requests) == 2


def test_a_machine_of_azure_s_without_infiniband_has_location_and_zone() -> None:
    hints, _ = look(
        "azure", azure_server({"location": "eastus", "zone": "", **dict.fromkeys(IDS, "")}), root="/nowhere"
    )
    assert levels(hints) == {"region": "eastus"}
    assert "no interconnect group" in hints.reason


# Oracle

OCID = "ocid1.{}.oc1.iad.anuwcljtxxxxxxxxxxxxxxxx{}"
RDMA = {
    "customerLocalBlock": OCID.format("computelocalblock", "q2xsn4ibrza"),
    "customerNetworkBlock": OCID.format("computenetworkblock", "7vx2mhqk3ta"),
    "customerHPCIslandId": OCID.format("computehpcisland", "3fj6q5lpw2a"),
    "customerGpuMemoryFabric": OCID.format("computegpumemoryfabric", "pvtkj3zctga"),
    "customerHostId": OCID.format("computebaremetalhost", "x4t7jz6e5na"),
}
HOME = {"/opc/v2/instance/canonicalRegionName": "us-phoenix-1", "/opc/v2/instance/availabilityDomain": "EMIr:PHX-AD-1"}


def oracle_server(paths: dict[str, Any]) -> Answering:
    served = pages({**HOME, **paths})
    return lambda request: (
        served(request) if request.headers.get("authorization") == "Bearer Oracle" else reply("", 401)
    )


def test_oracle_tells_the_blocks_as_its_labels_have_them() -> None:
    hints, _ = look("oci", oracle_server({"/opc/v2/host/rdmaTopologyData": RDMA}))
    assert levels(hints) == {
        "region": "us-phoenix-1", "zone": "PHX-AD-1", "core": "3fj6q5lpw2a", "spine": "7vx2mhqk3ta",
        "leaf": "q2xsn4ibrza", "nvl": "pvtkj3zctga",
    }  # fmt: skip


def test_without_capacity_topology_oracle_may_tell_block_and_rack() -> None:
    hints, _ = look("oci", oracle_server({"/opc/v2/host/": {"networkBlockId": "nb-1", "rackId": "rack-7", "id": 5}}))
    assert levels(hints) == {"region": "us-phoenix-1", "zone": "PHX-AD-1", "spine": "nb-1", "leaf": "rack-7"}
    hints, _ = look("oci", oracle_server({}))
    assert levels(hints) == {"region": "us-phoenix-1", "zone": "PHX-AD-1"}
    assert "no rdmaTopologyData" in hints.reason
