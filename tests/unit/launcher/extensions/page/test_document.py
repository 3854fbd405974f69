"""The page as a document: what its policy allows, and what a saved page holds."""

from __future__ import annotations

import base64
import hashlib
import json
import re

from launcher.extensions.page.document import load_document, save_document
from launcher.extensions.page.shared_run import SharedRun
from tests.support.page.fake_run import SCRIPT, FakeRun


def hashes(text: str, name: str) -> set[str]:
    parts = re.findall(rf"<{name}>(.*?)</{name}>", text, re.DOTALL)
    return {"'sha256-" + base64.b64encode(hashlib.sha256(part.encode()).digest()).decode() + "'" for part in parts}


def test_a_page_allows_hashes_alone_and_no_text_ends_a_saved_one() -> None:
    content, policy = load_document()
    text = content.decode()
    rules = dict(rule.split(" ", 1) for rule in policy.split("; "))
    assert set(rules["script-src"].split()) == hashes(text, "script")
    assert set(rules["style-src"].split()) == hashes(text, "style")
    assert (rules["default-src"], rules["connect-src"]) == ("'none'", "'self'")
    assert "unsafe" not in policy
    assert not re.search(r"https?://|//\w", re.sub(r"(?m)^\s*//.*$|  // .*$", "", text))
    assert not re.search(r"\son\w+=[\"']|javascript:|innerHTML|outerHTML|insertAdjacent|document\.write|eval\(", text)
    page = save_document(SharedRun(FakeRun(4, text="</script>" + SCRIPT)), has_stacks=True).decode()
    assert page.count("<script") == 2
    assert page.count("</script>") == 2
    assert "<img" not in page
    source = FakeRun(4)
    page = save_document(SharedRun(source), has_stacks=False).decode()
    assert '"why":null' in page
    assert "why" not in source.counts


def test_a_saved_page_has_all_data_and_may_reach_nothing() -> None:
    page = save_document(SharedRun(FakeRun(4)), has_stacks=True).decode()
    policy = re.search(r'<meta http-equiv="Content-Security-Policy" content="([^"]*)">', page)
    assert policy
    assert "connect-src" not in policy[1]
    assert set(re.search(r"script-src ([^;]*)", policy[1])[1].split()) == hashes(page, "script")  # type: ignore[index]
    data = json.loads(re.search(r'id="saved">(.*?)</script>', page, re.DOTALL)[1])  # type: ignore[index]
    assert data["run"]["run_id"] == "llama-70b"
    assert data["why"]["answer"]["culprits"] == [5]
    assert [row["sentence"] for row in data["run"]["event_rows"]][1] == "ranks 0-7 started"
    assert {chunk["rank"] for chunk in data["logs"]["h0"]["chunks"]} == set(range(8))
