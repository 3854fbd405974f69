"""The network measured by agents before they join: what an agent makes of the answer.

What was measured counts for more than what a source says, as --locality does: it is what the traffic meets. Where the
two differ, that is said.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from launcher.locality.contract import Level
from launcher.locality.gather import Locality
from launcher.locality.measure.placing import KnownNode, Path, Placement
from launcher.locality.measure.session import Answer
from launcher.locality.measure.wording import find_paths, name_domains
from launcher.locality.merge import SourceResult, merge, merge_rates
from launcher.model.rates import format_rate
from rendezvous import records
from rendezvous.stores.contract import Get, Store

_SOURCE = "measuring"


def is_begun(store: Store, prefix: str, run_id: str) -> bool:
    """Whether the run has a job with members and without an end. Raises StoreError; VersionError for another's job."""
    current = store.get(records.make_current_key(prefix, run_id)).first
    if current is None:
        return False
    keys = records.make_job_keys(prefix, run_id, current.value.decode(errors="replace"))
    spec, members, verdict = store.txn((), (Get(keys.spec), Get(keys.members, prefix=True), Get(keys.verdict))).found
    if not members.items or verdict.first is not None:
        return False
    if spec.first is not None:
        records.require_version(spec.first.value, f"the value of {keys.spec}")
    return True


def add_measured(found: Locality, answer: Answer, number: int, level_names: Sequence[str]) -> Locality:
    """Return the locality with this participant's measured levels and rates; its remarks are new ones."""
    path, finding = find_paths(answer, level_names)[number], answer.finding
    rates = {}
    for name, domains, measured in zip(
        name_domains(answer, level_names)[0], finding.levels, finding.rates_bps, strict=True
    ):
        rate = next((rate for domain, rate in zip(domains, measured, strict=True) if number in domain), 0)
        if rate:
            rates[name] = format_rate(rate)
    if finding.kind != "unknown" and finding.host_rates_bps[number]:
        rates["host"] = format_rate(finding.host_rates_bps[number])
    return _add(found, path, finding.reason, rates)


def make_known(found: Locality, answer: Answer, number: int, level_names: Sequence[str]) -> KnownNode:
    """Return what this node tells newcomers: its measured levels, and the rates that `add_measured` has found there."""
    path = find_paths(answer, level_names)[number]
    kept = {level for level, _ in path} | {"host"}
    return KnownNode(path=path, rates=tuple((name, rate) for name, rate in found.rates if name in kept))


def add_placement(found: Locality, placement: Placement) -> Locality:
    """Return a newcomer's locality with the place that it has found; its remarks are new ones."""
    rates = {name: format_rate(rate) for name, rate in placement.rates}
    return _add(found, placement.path, placement.reason, rates)


def _add(found: Locality, path: Path, reason: str, rates: Mapping[str, str]) -> Locality:
    levels = tuple(Level(level, domain, _SOURCE) for level, domain in path)
    results = (SourceResult(_SOURCE, levels, reason, rates), *found.results)
    merged = merge(results)
    merged_rates, remarks = merge_rates(results, merged.levels)
    return Locality(merged.levels, (*merged.remarks, *remarks), results, found.identity, merged_rates)
