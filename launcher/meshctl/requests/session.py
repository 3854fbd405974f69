"""Opens the store that meshrun's own options and variables name, for commands that are not agents.

The options have meshrun's meaning, so meshrun's modules do the work: `network` parses the options, `credentials` the
secrets, `probe` tests the server before anything waits for it, and `stores` connects.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from launcher.agent import stores
from launcher.agent.startup.probe import probe
from launcher.config import credentials
from launcher.config.options import command_line, network, readers
from launcher.model.errors import TemporaryError, UsageError
from rendezvous.stores.contract import Store

_ANY_RUN = "any"


class StoreSession(NamedTuple):
    """The store, the prefix of the runs, and the secret that signs their records; `notes` are for the user."""

    store: Store
    prefix: str
    secret: bytes
    notes: tuple[str, ...]


def open_session(values: Mapping[str, str], run_id: str | None, environ: Mapping[str, str]) -> StoreSession:
    """Connect as these options say: name of an option -> its text. Raises UsageError and TemporaryError."""
    words = {"rdzv-id": _ANY_RUN if run_id is None else run_id, **values}
    given = command_line.resolve_values(words, environ)
    if given["rdzv-backend"].is_default:
        given = command_line.resolve_values({**words, "rdzv-backend": "etcd"}, environ)
    if given["rdzv-endpoint"].is_default:
        raise UsageError("no store is named", "--rdzv-endpoint HOST:PORT, or the variable LAUNCHER_RDZV_ENDPOINT")
    readers.parse_name(given["rdzv-id"])
    conf = network.parse_conf(given["rdzv-conf"])
    notes = network.list_conf_remarks(given["rdzv-conf"], conf, " here", ())
    found = network.resolve_network(given, conf, is_alone=False, notes=notes)
    if found is None:
        raise UsageError(f"{given['rdzv-backend']}: jobs that meet there have no store", "--rdzv-backend etcd or c10d")
    secrets = credentials.read(found, environ)
    finding = probe(found)
    if finding.kind == "absent":
        raise TemporaryError(f"the store cannot be used: {finding.sentence}", finding.hint)
    if finding.kind == "wrong":
        raise UsageError(finding.sentence, finding.hint)
    store = stores.open_store(found, secrets)
    try:
        stores.check(store, found, given["rdzv-id"].text)
    except BaseException:
        store.close()
        raise
    return StoreSession(store, found.prefix, secrets.secret, tuple(notes))
