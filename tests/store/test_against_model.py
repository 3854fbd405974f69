"""Random operations on a store and on the simple model of one: the same answers, refusals and event streams."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Callable
from typing import Any, NamedTuple

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from rendezvous.errors import Compacted, LeaseNotFound, StoreError
from rendezvous.stores.contract import Compare, Delete, Get, Operation, Put, Store
from tests.store.model import Model
from tests.store.under_test import Recorder, StoreUnderTest

# Few names, so that random operations meet; prefixes of one another, so that ranges matter.
NAMES = st.sampled_from(["a", "a/", "a/1", "a0", "\U0010ffff"])
VALUES = st.sampled_from([b"", b"\0", b"1", b"12", b"2", b"\xff\xfe"])
LEASES = st.sampled_from([0, 0, 1, 1, 2, 2, 3, 4])  # the how-manieth lease granted: 0 is none, 3 perhaps not yet
UNKNOWN_LEASE = 987_654_321_987


class Do(NamedTuple):
    """One random step; `arguments` still lack the test's key prefix, lease ids and current revisions."""

    what: str
    arguments: tuple[Any, ...]


OPERATIONS = st.lists(
    st.one_of(
        st.builds(Put, NAMES, VALUES, LEASES),
        st.builds(Delete, NAMES, st.booleans()),
        st.builds(Get, NAMES, st.booleans()),
    ),
    max_size=4,
)
# Operands of revisions count back from the current one, so that they hit; 0 is the absent key's.
NUMBER_COMPARES = st.builds(
    Compare,
    NAMES,
    st.sampled_from(["create", "mod", "version"]),
    st.sampled_from(["=", "!=", "<", ">"]),
    st.integers(-4, 3),
)
VALUE_COMPARES = st.builds(Compare, NAMES, st.just("value"), st.sampled_from(["=", "!=", "<", ">"]), VALUES)
PUTS = st.builds(Do, st.just("put"), st.tuples(NAMES, VALUES, LEASES))
STEPS = st.lists(
    st.one_of(
        PUTS,
        PUTS,
        PUTS,
        st.builds(Do, st.just("delete"), st.tuples(NAMES, st.booleans())),
        st.builds(Do, st.just("get"), st.tuples(NAMES, st.booleans())),
        st.builds(
            Do,
            st.just("txn"),
            st.tuples(st.lists(NUMBER_COMPARES | VALUE_COMPARES, max_size=2), OPERATIONS, OPERATIONS),
        ),
        st.builds(Do, st.just("grant"), st.tuples(st.sampled_from([1, 2, 3, 5]))),
        st.builds(Do, st.just("keep_alive"), st.tuples(LEASES)),
        st.builds(Do, st.just("revoke"), st.tuples(LEASES)),
        st.builds(Do, st.just("advance"), st.tuples(st.sampled_from([0.5, 1, 2, 4]))),
        st.builds(Do, st.just("watch"), st.tuples(NAMES, st.booleans(), st.integers(-2, 6))),
        st.builds(Do, st.just("cancel"), st.tuples(st.integers(0, 3))),
        st.builds(Do, st.just("compact"), st.tuples(st.integers(-1, 4))),
    ),
    min_size=25,
    max_size=60,
)


class Pair:
    """A store and the model, driven by the same steps."""

    def __init__(self, under_test: StoreUnderTest, root: str) -> None:
        self.under_test = under_test
        self.store: Store = under_test.new_client()
        self.root = root
        self.now = 0.0
        self.first_revision = self.store.get(root).revision
        self.model = Model(self.first_revision)
        self.lease_ids = [0]
        self.watches: list[tuple[Recorder, tuple[str, bool, int]]] = []
        self.grant(3)
        self.grant(3)

    def lease(self, index: int) -> int:
        return self.lease_ids[index] if index < len(self.lease_ids) else UNKNOWN_LEASE

    def operation(self, operation: Operation) -> Operation:
        named = replace(operation, key=self.root + operation.key)
        return replace(named, lease=self.lease(named.lease)) if isinstance(named, Put) else named

    def compare(self, compare: Compare) -> Compare:
        operand = compare.operand
        if compare.target in ("create", "mod") and isinstance(operand, int) and operand:
            operand += self.model.revision
        return replace(compare, key=self.root + compare.key, operand=operand)

    def both(self, of_store: Callable[[], object], of_model: Callable[[], object]) -> None:
        """The same answer, or a refusal of the same kind."""

        def answer(ask: Callable[[], object]) -> object:
            try:
                return ask()
            except StoreError as error:
                return type(error)

        assert answer(of_store) == answer(of_model)

    def step(self, do: Do) -> None:
        getattr(self, do.what)(*do.arguments)

    def put(self, name: str, value: bytes, lease: int) -> None:
        key, held = self.root + name, self.lease(lease)
        self.both(lambda: self.store.put(key, value, lease=held), lambda: self.model.put(key, value, held))

    def delete(self, name: str, prefix: bool) -> None:
        key = self.root + name
        self.both(lambda: self.store.delete(key, prefix=prefix), lambda: self.model.delete(key, prefix))

    def get(self, name: str, prefix: bool) -> None:
        key = self.root + name
        self.both(lambda: self.store.get(key, prefix=prefix), lambda: self.model.get(key, prefix))

    def txn(self, compares: list[Compare], success: list[Operation], failure: list[Operation]) -> None:
        guards = [self.compare(each) for each in compares]
        branches = [self.operation(each) for each in success], [self.operation(each) for each in failure]
        self.both(lambda: self.store.txn(guards, *branches), lambda: self.model.txn(guards, *branches))

    def grant(self, ttl_s: float) -> None:
        # Where time cannot be left out, no lease may end by itself: a slow machine would be seen as a fault.
        lease = self.store.lease_grant(ttl_s if self.under_test.advances_at_once else 600)
        self.model.grant(lease.id, lease.ttl_s, self.now)
        self.lease_ids.append(lease.id)

    def keep_alive(self, index: int) -> None:
        lease = self.lease(index)
        self.both(lambda: self.store.lease_keep_alive(lease), lambda: self.model.keep_alive(lease, self.now))

    def revoke(self, index: int) -> None:
        lease = self.lease(index)
        self.both(lambda: self.store.lease_revoke(lease), lambda: self.model.revoke(lease))

    def advance(self, seconds: float) -> None:
        if not self.under_test.advances_at_once:
            return
        self.now += seconds
        self.under_test.advance(seconds)
        self.model.expire(self.now)

    def watch(self, name: str, prefix: bool, revisions_back: int) -> None:
        key, start_revision = self.root + name, self.model.revision + 1 - revisions_back
        if start_revision < self.first_revision:
            return
        first = self.model.watched(key, prefix, start_revision)[:1]
        if first and first[0].revision == start_revision == self.model.compacted:
            return  # older etcd servers have forgotten a deletion at that very revision (etcd issue 18089)
        watched = self.under_test.watch(self.store, key, prefix=prefix, start_revision=start_revision)
        if start_revision < self.model.compacted:
            error = watched.wait_for_loss()
            assert isinstance(error, Compacted)
            assert (error.revision, watched.batches) == (self.model.compacted, [])
        else:
            self.watches.append((watched, (key, prefix, start_revision)))

    def cancel(self, index: int) -> None:
        if index < len(self.watches):
            watched, (key, prefix, start_revision) = self.watches.pop(index)
            self.check(watched, key, prefix, start_revision)
            watched.watch.cancel()

    def compact(self, revisions_back: int) -> None:
        self.catch_up()  # a store may lose a watch that lags behind a compaction
        revision = self.model.revision - revisions_back
        if revision > self.first_revision:  # up to there an earlier example may have compacted
            self.both(lambda: self.under_test.compact(revision), lambda: self.model.compact(revision))

    def check(self, watched: Recorder, key: str, prefix: bool, start_revision: int) -> None:
        expected = self.model.watched(key, prefix, start_revision)
        if expected:
            watched.wait_for_revision(expected[-1].revision)
        assert watched.batches == expected

    def catch_up(self) -> None:
        """Write an event for every watch, so that none can be silent for want of one, and compare all of them."""
        for _, (key, _, start_revision) in self.watches:
            while self.model.revision < start_revision:
                self.put(key[len(self.root) :], b"mark", 0)
            self.put(key[len(self.root) :], b"mark", 0)
        for watched, (key, prefix, start_revision) in self.watches:
            self.check(watched, key, prefix, start_revision)
            assert watched.losses == []

    def clean_up(self) -> None:
        """Leave nothing that could make a revision in the next example."""
        for watched, _ in self.watches:
            watched.watch.cancel()
        for lease in self.lease_ids[1:]:
            with contextlib.suppress(LeaseNotFound):
                self.store.lease_revoke(lease)
        self.store.delete(self.root, prefix=True)


ROOTS = itertools.count()
EXAMPLES = int(os.environ.get("STORE_EXAMPLES", "30"))  # of some forty steps each; make slow WHAT=stores: more


@settings(
    max_examples=EXAMPLES,
    derandomize=True,
    phases=[Phase.generate, Phase.shrink],
    report_multiple_bugs=False,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(steps=STEPS)
def test_random_steps_give_what_the_model_gives(store_under_test: StoreUnderTest, steps: list[Do]) -> None:
    pair = Pair(store_under_test, store_under_test.key(f"{next(ROOTS)}/"))  # every example on keys of its own
    try:
        for do in steps:
            pair.step(do)
        pair.catch_up()
        pair.get("", True)
    finally:
        pair.clean_up()
