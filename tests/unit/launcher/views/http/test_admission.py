"""Who may read the page: by token, by the name that a request uses, and by the page that it comes from."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from launcher.views.http.admission import Admission, Refused, parse_host

GATE = Admission(token="right", names={"node7", "node7.cluster"})


def find_refusal(check: Callable[..., None], *given: object) -> int | None:
    """The status of a refusal, None for none."""
    try:
        check(*given)
    except Refused as refused:
        return refused.status
    return None


@pytest.mark.parametrize(
    "host", ["localhost", "localhost:9000", "127.0.0.1:8080", "10.0.0.7:80", "[::1]:8080", "Node7.Cluster:80", "node7"]
)
def test_addresses_and_this_machine_are_answered(host: str) -> None:
    assert find_refusal(GATE.check_origin, {"host": host}) is None


@pytest.mark.parametrize(
    "host",
    [
        "",
        "evil.example",
        "evil.example:8080",
        "localhost.evil.example",
        "[evil]",
        "node7.",
        "127.0.0.1%evil.example",
        "[::ffff:evil.example]",
        "1.2.3",
    ],
)
def test_a_foreign_name_is_refused_against_rebinding(host: str) -> None:
    assert find_refusal(GATE.check_origin, {"host": host}) == 421


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"sec-fetch-site": "same-origin"}, None),
        ({"sec-fetch-site": "none"}, None),
        ({"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}, None),
        ({"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "iframe"}, 403),
        ({"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"}, 403),
        ({"sec-fetch-site": "same-site", "sec-fetch-mode": "cors"}, 403),
    ],
)
def test_a_page_of_another_site_reads_nothing(headers: dict[str, str], status: int | None) -> None:
    assert find_refusal(GATE.check_origin, {"host": "localhost", **headers}) == status


@pytest.mark.parametrize(
    ("given", "headers", "status"),
    [
        (None, {}, 401),
        ("", {}, 401),
        ("wrong", {}, 403),
        ("righ", {}, 403),
        ("right ", {}, 403),
        ("r\u00efght", {}, 403),
        ("right", {}, None),
        (None, {"authorization": "Bearer right"}, None),
        (None, {"authorization": "Basic right"}, 401),
        (None, {"cookie": f"a=b; {GATE.cookie_name}=right"}, None),
        (None, {"cookie": f"{GATE.cookie_name}=left"}, 403),
        (None, {"cookie": "meshrun_other=right"}, 401),
        (None, {"cookie": "\x00=;;;=\r\n"}, 401),
    ],
)
def test_only_the_token_admits(given: str | None, headers: dict[str, str], status: int | None) -> None:
    assert find_refusal(GATE.check_token, given, headers) == status


def test_the_names_of_cookies_do_not_hold_the_token() -> None:
    assert "right" not in GATE.cookie_name
    assert GATE.cookie_name != Admission(token="other", names=()).cookie_name


@pytest.mark.parametrize(
    ("text", "host"),
    [("a:1", "a"), ("[::1]:80", "::1"), ("[::1]", "::1"), (" A ", "a"), ("", ""), ("[::1", "::1"), ("::1", "")],
)
def test_hosts_are_read(text: str, host: str) -> None:
    assert parse_host(text) == host
