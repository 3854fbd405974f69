"""The one reader of the store for commands that are not agents: which runs there are, and all keys of a job.

The options that name the store have meshrun's meaning, so meshrun's modules do the work: `network` parses the options,
`credentials` the secrets, `probe` tests the server before anything waits for it, and `stores` connects. A job is read
at one revision, without a watch: that costs its agents nothing and the store little.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from contextlib import suppress
from difflib import get_close_matches
from typing import TYPE_CHECKING, NamedTuple

from launcher.agent.startup import stores
from launcher.agent.startup.probe import probe
from launcher.config import credentials
from launcher.config.options import command_line, network, rendezvous
from launcher.config.options.table import BY_NAME
from launcher.meshctl.run_choice import StoredRun, choose_stored
from launcher.model import odd_text
from launcher.model.errors import TemporaryError, UsageError
from launcher.model.text import format_list
from launcher.views.questions.stored_request import JobAddress
from launcher.views.run_view import RunView
from launcher.views.stored_run import JobRecords, build_run
from rendezvous import __version__, records
from rendezvous.errors import LeaseNotFound, RecordError, StoreError, VersionError
from rendezvous.records import Keys, RoundHistory, Seal, Spec, decode, name_run
from rendezvous.stores.contract import Get, KeyValue, Store

if TYPE_CHECKING:
    from rendezvous.records import AnyRecord

_ATTEMPTS = 5  # rounds that may be sealed one after the other while we read
_SUGGESTED_MAX = 4
_ANY_RUN = "any"
NAME_STORE = "set --rdzv-endpoint HOST:PORT or the variable LAUNCHER_RDZV_ENDPOINT to the store"


class NoRunError(UsageError):
    """The store has no run of this name."""


class JobStore(NamedTuple):
    """A store, the prefix of the runs in it, and the secret that signs their records; `notes` are for the user."""

    store: Store
    prefix: str
    secret: bytes = b""
    notes: tuple[str, ...] = ()

    def find_run(self, run_id: str) -> KeyValue:
        """Return the key that names the run's job.

        Raises UsageError for an unknown name, with the existing runs, and for a job of another version of meshrun.
        """
        item = self.store.get(records.make_current_key(self.prefix, run_id)).first
        if item is not None:
            self._require_version(run_id, self.make_keys(run_id, item).spec)
            return item
        there = self.list_runs()
        if not there:
            where = f"/{self.prefix}/"
            sentence = f"{name_run(run_id)} does not exist; no run is under {where}"
            hint = odd_text.explain(run_id) or "set LAUNCHER_RDZV_PREFIX if the run has another prefix"
            raise NoRunError(sentence, hint)
        shown = get_close_matches(run_id, there, n=_SUGGESTED_MAX, cutoff=0.5) or there
        word = "there is" if len(shown) == 1 else "there are"
        raise NoRunError(f"{name_run(run_id)} does not exist; {word} {format_list(shown, _SUGGESTED_MAX)}")

    def _require_version(self, run_id: str, spec_key: str) -> None:
        spec = self.store.get(spec_key).first
        try:
            records.require_version(spec.value if spec is not None else b"", spec_key)
        except VersionError as error:
            sentence = f"{name_run(run_id)} uses meshrun {error.version}, but this is meshrun {__version__}"
            raise UsageError(sentence, f"use meshctl of meshrun {error.version}") from None
        except RecordError:
            pass  # who reads it says so

    def list_runs(self) -> list[str]:
        """List the names of the runs that are there. Raises StoreError."""
        return _list_names([item.key for item in self.store.get(f"/{self.prefix}/", prefix=True).items], self.prefix)

    def choose_run(self, word: str, *, takes_beginning: bool = True) -> str:
        """Return the id of the run that a word means; the word itself if there is none. As in `run_choice`.

        Raises UsageError if there are several, and StoreError.
        """
        if self.store.get(records.make_current_key(self.prefix, word)).first is not None:
            return word
        run = choose_stored(self._list_known(), word, takes_beginning=takes_beginning)
        return word if run is None else run.run_id

    def _list_known(self) -> list[StoredRun]:
        items = {item.key: item for item in self.store.get(f"/{self.prefix}/", prefix=True).items}
        found, names = [], sorted(items)
        for run_id in filter(str.isprintable, _list_names(items, self.prefix)):  # whoever writes here chooses names
            keys = self.make_keys(run_id, items[records.make_current_key(self.prefix, run_id)])
            spec = self._decode(Spec, items.get(keys.spec))
            oldest = next(iter(names[bisect_left(names, keys.history) :][:1]), "")
            first = self._decode(RoundHistory, items[oldest]) if oldest.startswith(keys.history) else None
            began_at, has_ended = first.began_at if first else 0.0, keys.verdict in items
            found.append(StoredRun(run_id, spec.script if spec else "", began_at, has_ended))
        return found

    def read_job(self, run_id: str) -> JobRecords:
        """Read everything about the run's current job. Raises UsageError if there is none, StoreError."""
        for _ in range(_ATTEMPTS):
            current = self.find_run(run_id)
            job = self.make_keys(run_id, current)
            seal = self._decode(Seal, self.store.get(job.round).first)
            prefixes = [job.control, job.members, job.statuses, job.history]
            if seal is not None:
                prefixes.append(job.make_assignments_prefix(seal.round, seal.plan_token))
            reads = (Get(current.key), Get(job.spec), *(Get(prefix, prefix=True) for prefix in prefixes))
            answer = self.store.txn((), reads)
            now = answer.found[0].first
            items = tuple(item for found in answer.found[1:] for item in found.items)
            seal_now = self._decode(Seal, next((item for item in items if item.key == job.round), None))
            token, token_now = (one and one.plan_token for one in (seal, seal_now))
            if now is not None and now.value == current.value and token == token_now:
                left_s = self._read_lease_left_s(job, items)
                return JobRecords(run_id, job, items, self.secret, left_s, time.time())
            # another job, or another round, since we began
        raise StoreError(f"{name_run(run_id)} starts rounds faster than its state can be read")

    def read_run(self, run_id: str) -> RunView:
        """Return the view of the run's current job. Raises UsageError if there is none, StoreError."""
        return build_run(self.read_job(run_id))

    def locate(self, run_id: str) -> JobAddress:
        """Return where the run's current job is. Raises UsageError if there is none, StoreError."""
        return JobAddress(self.store, self.make_keys(run_id, self.find_run(run_id)), self.secret, run_id)

    def make_keys(self, run_id: str, current: KeyValue) -> Keys:
        """Return the keys of the job that `current` names."""
        return records.make_job_keys(self.prefix, run_id, current.value.decode(errors="replace"))

    def _decode(self, kind: type[AnyRecord], item: KeyValue | None) -> AnyRecord | None:
        try:
            return decode(kind, item.value, item.key, self.secret) if item is not None else None
        except RecordError:
            return None

    def _read_lease_left_s(self, job: Keys, items: tuple[KeyValue, ...]) -> dict[int, float]:
        """Return for each member's lease the seconds until it would expire."""
        found = {}
        for item in items:
            if item.lease and item.key.startswith(job.members):
                with suppress(LeaseNotFound):  # expired since
                    found[item.lease] = self.store.lease_remaining(item.lease)
        return found


def _list_names(keys: Iterable[str], prefix: str) -> list[str]:
    """List the names of the runs of these keys."""
    found = [key.removeprefix(f"/{prefix}/") for key in keys]
    return sorted(key.removesuffix("/current") for key in found if key.endswith("/current") and key.count("/") == 1)


def knows_store(values: Mapping[str, str], environ: Mapping[str, str]) -> bool:
    """Whether a flag or a variable names a store."""
    endpoint = BY_NAME["rdzv-endpoint"]
    return bool(values.get(endpoint.name)) or any(environ.get(name) for name in endpoint.variables)


def open_job_store(values: Mapping[str, str], run_id: str | None, environ: Mapping[str, str]) -> JobStore:
    """Connect as these options say: name of an option -> its text. Raises UsageError and TemporaryError."""
    words = {"rdzv-id": _ANY_RUN if run_id is None else run_id, **values}
    given = command_line.resolve_values(words, environ)
    if given["rdzv-backend"].is_default:
        given = command_line.resolve_values({**words, "rdzv-backend": "etcd"}, environ)
    if given["rdzv-endpoint"].is_default:
        raise UsageError("no store is set", NAME_STORE)
    given["rdzv-id"].read()
    conf = given["rdzv-conf"].read()
    notes = rendezvous.list_conf_remarks(given["rdzv-conf"], conf, " here", ())
    found = network.resolve_network(given, conf, is_alone=False, notes=notes)
    if found is None:
        raise UsageError(f"{given['rdzv-backend']} has no store", "use --rdzv-backend etcd or c10d")
    login = credentials.read(found, environ)
    finding = probe(found)
    if finding.kind == "absent":
        raise TemporaryError(f"the store cannot be used: {finding.sentence}", finding.hint)
    if finding.kind == "wrong":
        raise UsageError(finding.sentence, finding.hint)
    store = stores.open_store(found, login)
    try:
        stores.check(store, found, given["rdzv-id"].text)
    except BaseException:
        store.close()
        raise
    return JobStore(store, found.prefix, login.secret, tuple(notes))
