"""Who may read a path that is not open to all: a request is admitted, or refused with a status and a sentence.

The page shows log lines and stacks, which are the user's alone. Three checks:

- **Who asks.** A page on loopback admits processes of its own user and of root without more: the kernel says whose a
  connection is (`find_peer_user` in `http_server`). Everybody else, and everybody where the
  page listens on another address, needs the token.
- **By which name.** A page of another site can point a name of its own at this address and read the answer (DNS
  rebinding), so a request names an IP address, localhost or this machine, and no other host.
- **From which page.** A browser says whether another site's page makes the request; those are refused.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Collection, Mapping
from http.cookies import CookieError, SimpleCookie

from msgspec import Struct

from rendezvous.stores.addresses import pack_address


class Refused(Exception):
    """A request gets no answer: an HTTP status, and a sentence for the reader."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


class Admission(Struct, frozen=True, kw_only=True):
    """`token`: what readers have to know. `names`: of this machine, in small letters."""

    token: str
    names: Collection[str]

    @property
    def cookie_name(self) -> str:
        """The name of the cookie that holds the token: one for each page, as browsers do not tell ports apart."""
        return "meshrun_" + hashlib.sha256(self.token.encode()).hexdigest()[:12]

    def check_origin(self, headers: Mapping[str, str]) -> None:
        """Check the host that a request names, and the page that it comes from. `headers`: names in small letters.

        Raises Refused, as `check_token` does.
        """
        host = parse_host(headers.get("host", ""))
        is_address = pack_address(host) is not None and (":" in host or "%" not in host)  # a zone is IPv6's alone
        if not (is_address or host == "localhost" or host in self.names):
            raise Refused(421, "this page answers to localhost, an IP address or this machine's name")
        is_foreign = headers.get("sec-fetch-site", "none") not in ("none", "same-origin")
        # A link from elsewhere opens the page as any address that is typed does; nothing else may be fetched so.
        is_link = headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"
        if is_foreign and not is_link:
            raise Refused(403, "a page of another site may not read this one")

    def check_token(self, given: str | None, headers: Mapping[str, str]) -> None:
        """Check the token: `given` in the query, or in a header or cookie."""
        scheme, _, bearer = headers.get("authorization", "").partition(" ")
        texts = [given, bearer if scheme.lower() == "bearer" else None, self._read_cookie(headers.get("cookie", ""))]
        told = [text for text in texts if text]
        if not told:
            raise Refused(401, "this page needs the token in the address that was printed at its start")
        if not any(hmac.compare_digest(text.encode(errors="replace"), self.token.encode()) for text in told):
            raise Refused(403, "the token is not valid for this page")

    def _read_cookie(self, text: str) -> str | None:
        try:
            found = SimpleCookie(text).get(self.cookie_name)
        except CookieError:
            return None
        return found.value if found is not None else None


def parse_host(text: str) -> str:
    """Return the host of a Host header, in small letters, without brackets and port."""
    text = text.strip().lower()
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.partition(":")[0]
