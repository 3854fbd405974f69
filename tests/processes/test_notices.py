"""Servers that announce the end of a machine: each cloud's as documented, and every one as it should not be."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import pytest

from launcher.extensions.notices import providers
from launcher.extensions.notices.notice import Notice
from launcher.extensions.notices.providers import (
    PROVIDERS,
    AmazonNotices,
    AzureNotices,
    GoogleNotices,
    NoticeProvider,
    measure_left_s,
)
from launcher.extensions.notices.watcher import FAILURES_UNTIL_SAID, PAUSE_MAX_S, NoticeWatcher, make_watcher
from launcher.hardware.cloud_firmware import FIRMWARE_SIGNS
from launcher.hardware.metadata_server import HttpResponse, NoAnswer, Server
from launcher.model.errors import describe
from rendezvous.reasons import Reason
from tests.support.network.metadata_servers import (
    Answering,
    Request,
    amazon,
    azure,
    dripping,
    google,
    reply,
    serving,
    silence,
)
from tests.support.waiting import wait_until

LIMIT_S = 20.0  # for servers that answer
SHORT_S = 0.15  # for those that do not


@pytest.fixture(autouse=True)
def on_a_busy_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers that answer have all the time they need."""
    monkeypatch.setattr(providers, "LIMIT_S", LIMIT_S)


def read(provider: NoticeProvider, answer: Answering) -> list[Notice]:
    with serving(answer) as server:
        return provider.read(lambda limit_s: Server(server.address, limit_s))


def watch(provider: NoticeProvider, address: tuple[str, int]) -> NoticeWatcher:
    return NoticeWatcher(provider, lambda: None, lambda: 7.0, address)


# Amazon

SPOT = {"action": "terminate", "time": "2026-01-05T18:02:00Z"}
EVENT = {
    "NotBefore": "21 Jan 2026 09:00:43 GMT",
    "Code": "instance-retirement",
    "Description": "The instance is running on degraded hardware",
    "EventId": "instance-event-0d59937288b749b32",
    "State": "active",
}


def test_amazon_without_notices_has_none() -> None:
    assert read(AmazonNotices(), amazon({})) == []


def test_amazon_announces_a_spot_interruption_by_the_servers_own_clock() -> None:
    (notice,) = read(AmazonNotices(), amazon({"spot/instance-action": SPOT}))
    assert notice.what == Reason.of("hardware/spot-interruption", action="terminate")
    assert (notice.ends_node, notice.left_s, notice.when) == (True, 120.0, "2026-01-05T18:02:00Z")


@pytest.mark.parametrize("when", ["", "soon", "2026-13-05T18:02:00Z", "0001-01-01T00:00:00Z", "9" * 5000, None, 7])
def test_an_interruption_at_a_time_that_is_none_is_announced_all_the_same(when: object) -> None:
    (notice,) = read(AmazonNotices(), amazon({"spot/instance-action": {"action": "stop", "time": when}}))
    assert (notice.ends_node, notice.left_s, notice.least_s) == (True, None, 120.0)


def test_an_interruption_that_is_far_away_is_one_of_a_wrong_clock() -> None:
    far = {**SPOT, "time": "2026-01-05T19:02:00Z"}
    (notice,) = read(AmazonNotices(), amazon({"spot/instance-action": far}))
    assert (notice.ends_node, notice.left_s, notice.least_s) == (True, None, 120.0)


@pytest.mark.parametrize("broken", ["rebalance", "scheduled"])
def test_what_cannot_be_read_hides_no_interruption(broken: str) -> None:
    values: dict[str, Any] = {}

    def answer(request: Request) -> list[bytes]:
        return reply("", 403) if request.path.endswith(broken) else amazon(values)(request)

    provider = AmazonNotices()
    with pytest.raises(NoAnswer, match="answers 403"):
        read(provider, answer)
    values["spot/instance-action"] = SPOT
    assert [notice.key for notice in read(provider, answer)] == ["spot/instance-action"]


def test_what_cannot_be_read_beside_an_interruption_is_not_withdrawn() -> None:
    values: dict[str, Any] = {"events/recommendations/rebalance": {"noticeTime": "2026-01-05T17:59:00Z"}}
    works = [True]

    def answer(request: Request) -> list[bytes]:
        return reply("", 503) if "rebalance" in request.path and not works[0] else amazon(values)(request)

    with serving(answer) as server:
        watcher = watch(AmazonNotices(), server.address)
        watcher.read_once()
        works[0] = False
        values["spot/instance-action"] = SPOT
        watcher.read_once()
        assert [(change.notice.key.rpartition("/")[2], change.is_withdrawn) for change in watcher.take_changes()] == [
            ("rebalance", False), ("instance-action", False),
        ]  # fmt: skip


def test_amazon_recommends_and_announces_maintenance() -> None:
    values = {
        "events/recommendations/rebalance": {"noticeTime": "2026-01-05T17:59:00Z"},
        "events/maintenance/scheduled": [
            EVENT, {**EVENT, "EventId": "2", "Code": "system-maintenance"},
            {**EVENT, "EventId": "3", "State": "canceled"},
        ],
    }  # fmt: skip
    rebalance, retirement, network = read(AmazonNotices(), amazon(values))
    assert (rebalance.ends_node, retirement.ends_node, network.ends_node) == (False, True, False)
    assert rebalance.what == Reason.of("hardware/rebalance")
    assert retirement.what == Reason.of("hardware/maintenance", code="instance-retirement")
    assert retirement.left_s == pytest.approx(15 * 86400 + 15 * 3600 + 43)


def test_maintenance_that_was_due_before_the_agent_began_is_over() -> None:
    past = {**EVENT, "NotBefore": "5 Jan 2026 17:00:43 GMT", "Code": "instance-reboot"}
    (notice,) = read(AmazonNotices(), amazon({"events/maintenance/scheduled": [past]}))
    assert not notice.ends_node
    reboot = Reason.of("hardware/maintenance", code="instance-reboot")
    assert notice.what == Reason.of("hardware/over", what=reboot)


def test_scheduled_events_are_read_once_a_minute_and_kept_meanwhile() -> None:
    times = iter([0.0, 0.0, 59.0, 60.0, 60.0])
    provider = AmazonNotices(clock=lambda: next(times))
    with serving(amazon({"events/maintenance/scheduled": [EVENT]})) as server:
        found = [provider.read(lambda limit_s: Server(server.address, limit_s)) for _ in range(3)]
        paths = [request.path for request in server.requests]
    assert [len(one) for one in found] == [1, 1, 1]
    assert paths.count("/latest/meta-data/events/maintenance/scheduled") == 2
    assert paths.count("/latest/api/token") == 1


def test_a_token_that_is_refused_is_replaced() -> None:
    tokens: list[str] = []

    def answer(request: Request) -> list[bytes]:
        if request.method == "PUT":
            tokens.append(f"token-{len(tokens)}")
            return reply(tokens[-1])
        return reply("", 404 if request.headers["x-aws-ec2-metadata-token"] == "token-1" else 401)

    provider = AmazonNotices()
    with pytest.raises(NoAnswer, match="answers 401"):
        read(provider, answer)
    assert read(provider, answer) == []


# Google


def test_google_announces_a_preemption_of_no_known_time() -> None:
    (notice,) = read(GoogleNotices(), google({"instance/preempted": "TRUE", "instance/maintenance-event": "NONE"}))
    assert (notice.ends_node, notice.left_s, notice.least_s) == (True, None, 30.0)


def test_a_maintenance_event_that_cannot_be_read_hides_no_preemption() -> None:
    values = {"instance/preempted": "FALSE"}
    event = "TERMINATE_ON_HOST_MAINTENANCE"

    def answer(request: Request) -> list[bytes]:
        is_broken = request.path.endswith("maintenance-event")
        return reply("", 403, Metadata_Flavor="Google") if is_broken else google(values)(request)

    provider = GoogleNotices()
    with pytest.raises(NoAnswer, match="answers 403"):
        read(provider, answer)
    values["instance/preempted"] = "TRUE"
    assert [notice.key for notice in read(provider, answer)] == ["instance/preempted"]
    read(provider, google({**values, "instance/maintenance-event": event}))
    keys = [notice.key for notice in read(provider, answer)]
    assert keys == ["instance/preempted", f"instance/maintenance-event {event}"], "it is not known to be over"


@pytest.mark.parametrize(
    ("event", "ends_node"),
    [("TERMINATE_ON_HOST_MAINTENANCE", True), ("MIGRATE_ON_HOST_MAINTENANCE", False), ("of\x1b another kind", False)],
)
def test_a_machine_that_is_migrated_goes_on(event: str, ends_node: bool) -> None:
    values = {"instance/preempted": "FALSE", "instance/maintenance-event": event}
    (notice,) = read(GoogleNotices(), google(values))
    assert notice.ends_node == ends_node
    assert describe(notice.what).isprintable()


def test_a_server_that_hides_both_keys_has_no_notices() -> None:
    assert read(GoogleNotices(), google({})) == []


def test_google_is_waited_for_and_a_change_comes_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GoogleNotices, "WAIT_S", 600.0)
    values, changed = {"instance/preempted": "FALSE", "instance/maintenance-event": "NONE"}, threading.Event()
    provider = GoogleNotices()
    with serving(google(values, changed)) as server:
        open_server: Callable[[float], Server] = lambda limit_s: Server(server.address, limit_s)  # noqa: E731
        assert provider.read(open_server) == []
        found: list[Notice] = []
        thread = threading.Thread(target=lambda: found.extend(provider.read(open_server)))
        thread.start()
        wait_until(lambda: len(server.requests) == 3, 20, "the third request")
        assert server.requests[2].path.endswith("?wait_for_change=true&timeout_sec=600&last_etag=FALSE")
        values["instance/preempted"] = "TRUE"
        changed.set()
        thread.join(20)
        assert [notice.key for notice in found] == ["instance/preempted"]


def test_a_server_that_does_not_wait_is_not_asked_without_pause() -> None:
    provider = GoogleNotices()
    with serving(google({"instance/preempted": "FALSE"})) as server:
        for _ in range(2):
            provider.read(lambda limit_s: Server(server.address, limit_s))
    assert provider.pause_s == GoogleNotices.WAIT_S


# Azure

REBOOT: dict[str, Any] = {
    "EventId": "602d9444-d2cd-49c7-8624-8643e7171297",
    "EventType": "Reboot",
    "ResourceType": "VirtualMachine",
    "Resources": ["vm-0", "VM-1"],
    "EventStatus": "Scheduled",
    "NotBefore": "Mon, 05 Jan 2026 18:15:00 GMT",
    "Description": "Host server is undergoing maintenance.",
    "EventSource": "Platform",
    "DurationInSeconds": -1,
}


BEGUN = {"EventStatus": "Started", "NotBefore": ""}


@pytest.mark.parametrize(
    ("kind", "ends_node"),
    [("Preempt", True), ("Terminate", True), ("Reboot", True), ("Redeploy", True), ("Freeze", False), ("Dance", False)],
)
def test_azure_names_what_will_happen(kind: str, ends_node: bool) -> None:
    (notice,) = read(AzureNotices(), azure([{**REBOOT, "EventType": kind}]))
    assert (notice.ends_node, notice.left_s) == (ends_node, 900.0)


@pytest.mark.parametrize("day", range(5, 12))
def test_times_of_every_day_of_the_week_are_read(day: int) -> None:
    sent_at = datetime(2026, 1, day, 18, tzinfo=timezone.utc)
    answer = HttpResponse(200, "", {"date": format_datetime(sent_at, usegmt=True)})
    when = format_datetime(sent_at + timedelta(seconds=900), usegmt=True)
    assert measure_left_s(when, answer) == 900.0


def test_an_event_of_another_machine_is_ignored() -> None:
    assert (
        read(AzureNotices(), azure([{**REBOOT, "Resources": ["vm-0", "vm-11", 1]}, {**REBOOT, "Resources": "vm-1"}]))
        == []
    )


@pytest.mark.parametrize(("kind", "ends_node"), [("Preempt", True), ("Terminate", True), ("Reboot", False)])
def test_an_event_that_has_begun_leaves_no_time_and_may_be_over(kind: str, ends_node: bool) -> None:
    (notice,) = read(AzureNotices(), azure([{**REBOOT, **BEGUN, "EventType": kind}]))
    assert (notice.ends_node, notice.left_s, notice.when) == (ends_node, 0.0, "Started")


def test_a_reboot_that_was_announced_and_begins_early_ends_the_node() -> None:
    provider = AzureNotices()
    read(provider, azure([REBOOT]))
    (notice,) = read(provider, azure([{**REBOOT, **BEGUN}]))
    assert (notice.ends_node, notice.left_s) == (True, 0.0)


def test_azure_is_only_ever_read() -> None:
    provider = AzureNotices()
    with serving(azure([REBOOT])) as server:
        for _ in range(3):
            provider.read(lambda limit_s: Server(server.address, limit_s))
        assert {request.method for request in server.requests} == {"GET"}
        assert sum("compute/name" in request.path for request in server.requests) == 1


# What every server may do


@pytest.mark.parametrize("cloud", PROVIDERS)
@pytest.mark.parametrize(
    "answer",
    [
        lambda _: reply("<html>a portal of a hotel</html>", Metadata_Flavor="Google"),
        lambda _: reply("[" * 50_000, Metadata_Flavor="Google"),
        lambda _: reply("[1]", Metadata_Flavor="Google"),
        lambda _: reply("null", Metadata_Flavor="Google"),
        lambda _: reply('{"Events": {}}', Metadata_Flavor="Google"),
        lambda _: reply("\0\1", Metadata_Flavor="Google"),
        lambda _: reply("", 302, Location="http://127.0.0.1:1/", Metadata_Flavor="Google"),
        lambda _: reply("", 500, Metadata_Flavor="Google"),
        lambda _: reply("", 429, Metadata_Flavor="Google"),
        lambda _: reply("x" * 500_000, Metadata_Flavor="Google"),
        lambda _: [b"SSH-2.0-OpenSSH_9.6\r\n"],
        lambda _: [b"HTTP/1.1 200 OK\r\nMetadata-Flavor: Google\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\nhello"],
        lambda _: [],
    ],
)  # fmt: skip
def test_nonsense_is_no_notice_and_is_said_once(cloud: str, answer: Answering) -> None:
    with serving(answer) as server:
        watcher = watch(PROVIDERS[cloud](), server.address)
        pauses = [watcher.read_once() for _ in range(FAILURES_UNTIL_SAID + 3)]
    assert watcher.take_changes() == []
    complaints = watcher.take_complaints()
    assert len(complaints) == 1
    assert complaints[0].isprintable()
    assert complaints[0].startswith(f"notices of {watcher.provider.label} cannot be read: the metadata server ")
    assert pauses == sorted(pauses)
    assert pauses[-1] == PAUSE_MAX_S


@pytest.mark.parametrize("cloud", PROVIDERS)
def test_a_server_that_is_silent_or_gone_costs_its_limit_only(cloud: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(providers, "LIMIT_S", SHORT_S)
    monkeypatch.setattr(GoogleNotices, "WAIT_S", 0.0)
    with silence() as address:
        watch(PROVIDERS[cloud](), address).read_once()
    watcher = watch(PROVIDERS[cloud](), address)
    for _ in range(FAILURES_UNTIL_SAID):
        watcher.read_once()
    assert "refuses connections" in watcher.take_complaints()[0]
    with serving(dripping(b"H")) as server:
        watcher = watch(PROVIDERS[cloud](), server.address)
        watcher.read_once()
    assert watcher.take_changes() == []


def test_an_answer_that_is_none_withdraws_nothing() -> None:
    values: dict[str, Any] = {"spot/instance-action": SPOT}
    works = [True]
    with serving(lambda request: amazon(values)(request) if works[0] else reply("", 503)) as server:
        watcher = watch(AmazonNotices(), server.address)
        assert watcher.read_once() == AmazonNotices.pause_s
        works[0] = False
        watcher.read_once()
        works[0] = True
        watcher.read_once()
        assert [change.is_withdrawn for change in watcher.take_changes()] == [False]
        del values["spot/instance-action"]
        watcher.read_once()
        (change,) = watcher.take_changes()
    assert change.is_withdrawn
    assert watcher.take_complaints() == []


def test_the_thread_wakes_the_loop_and_survives_until_a_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    woken = threading.Event()
    with serving(azure([REBOOT])) as server:
        watcher = NoticeWatcher(AzureNotices(), woken.set, time.monotonic, server.address)
        watcher.start()
        assert woken.wait(20)
        assert [change.notice.key for change in watcher.take_changes()] == [REBOOT["EventId"]]
        woken.clear()
        monkeypatch.setattr(AzureNotices, "read", lambda *_: 1 / 0)
        assert woken.wait(20)
    assert watcher.take_complaints() == ["notices of Azure cannot be read: ZeroDivisionError: division by zero"]


# Where a server is asked


def place(root: Path, file: str, text: str) -> None:
    path = root / file.lstrip("/")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.mark.parametrize("cloud", [*FIRMWARE_SIGNS, ""])
def test_a_server_is_asked_only_where_the_firmware_names_its_cloud(cloud: str, tmp_path: Path) -> None:
    for file, text in FIRMWARE_SIGNS.get(cloud, ())[:1]:
        place(tmp_path, file, f"{text}\n")
    made = make_watcher({}, lambda: None, lambda: 0.0, str(tmp_path))
    assert isinstance(made, NoticeWatcher) == (cloud in PROVIDERS)
    off = make_watcher({"AWS_EC2_METADATA_DISABLED": "true"}, lambda: None, lambda: 0.0, str(tmp_path))
    assert isinstance(off, NoticeWatcher) == (cloud in PROVIDERS and cloud != "aws")
