"""The copy of the followed keys: what is read in place of a watch that has ended."""

from __future__ import annotations

from rendezvous.errors import Compacted
from rendezvous.events import StoreReply, StoreRequest, WatchLost
from rendezvous.settings import Settings
from rendezvous.state.request_queue import RequestQueue
from rendezvous.state.watch_cache import WatchCache
from rendezvous.stores.contract import GetResult, KeyValue, TxnResult


def read(revision: int, *items: KeyValue) -> TxnResult:
    return TxnResult(True, revision, (GetResult(revision, items),))


def test_a_key_is_first_seen_in_a_read_whose_watch_was_replaced_meanwhile() -> None:
    requests = RequestQueue(Settings(), lambda: 0.5)
    cache = WatchCache(requests, b"")
    cache.watch("job/ctl/", 1)
    cache.handle_watch(WatchLost("job/ctl/", Compacted("gone")), 0.0)
    cache.restore_watches(10.0)
    cache.resync(10.0, lambda sent_at: None)
    again, all_keys = (action.id for action in requests.actions if isinstance(action, StoreRequest))
    requests.handle_outcome(StoreReply(all_keys, read(5)), 11.0)
    requests.handle_outcome(StoreReply(again, read(6, KeyValue("job/ctl/round", b"", 6, 6, 1, 0))), 12.0)
    assert cache.keys.get_first_seen_at("job/ctl/round") == 12.0
    assert not cache.lost_watches
