"""The store of an explored cluster: each request, answer and watched event waits until it is chosen."""

from __future__ import annotations

from rendezvous import events
from rendezvous.errors import StoreError
from rendezvous.events import Grant, Revoke, StoreReply, StoreRequest, WatchLost
from rendezvous.stores.contract import Batch, Watch
from rendezvous.testing.explore.offers import STORE, MakeOffer
from rendezvous.testing.simulation.contract import DirectStore, Send
from rendezvous.testing.simulation.host import Host


class SteppedStore:
    """The `StoreAccess` of an explored cluster. `has_one_stream`: all watches of a node share one order of events."""

    def __init__(self, server: DirectStore, offer: MakeOffer, *, has_one_stream: bool) -> None:
        self._server = server
        self._offer = offer
        self._has_one_stream = has_one_stream

    def request(self, host: Host, incarnation: int, store_request: StoreRequest, send: Send) -> None:
        if isinstance(store_request.request, Grant):  # it commutes with all other requests
            self.serve(host.name, incarnation, store_request, send)
        else:
            label = f"the store applies a request of {host.name}: {store_request.why}"
            self._offer(store_request, label, (STORE,), self.serve, host.name, incarnation, store_request, send)

    def serve(self, name: str, incarnation: int, store_request: StoreRequest, send: Send) -> None:
        event = self._server.apply(store_request)
        if not isinstance(store_request.request, Revoke):
            how = "answered" if isinstance(event, StoreReply) else "refused"
            self._offer(event, f"{name} is {how}: {store_request.why}", (name,), send, incarnation, event)

    def follow(self, host: Host, key: str, start_revision: int, incarnation: int, send: Send) -> Watch:
        offer, name = self._offer, host.name
        line = (name, "watch", "" if self._has_one_stream else key)

        def on_batch(batch: Batch) -> None:
            changes = ", ".join(f"{event.kind} {event.item.key.split('/', 4)[-1]}" for event in batch.events)
            offer(line, f"{name} sees {changes}", (name,), send, incarnation, events.WatchUpdate(key, batch))

        def on_lost(error: StoreError) -> None:
            offer(line, f"{name} loses a watch", (name,), send, incarnation, WatchLost(key, error))

        watch = self._server.store.watch(
            key, prefix=key.endswith("/"), start_revision=start_revision, on_batch=on_batch, on_lost=on_lost
        )
        self._server.deliver()
        return watch

    def end_due_leases(self) -> None:
        self._server.store.expire()
        self._server.deliver()

    def end_lease(self, lease: int) -> None:
        """End a lease before its time."""
        self._server.store.lease_revoke(lease)
        self._server.deliver()
