"""The plug-in for torchrun: its own launcher, with this project's agreement and placement.

    torchrun --rdzv-backend=meshrun --rdzv-endpoint=etcd-0:2379 --rdzv-id=job --nnodes=2:4 train.py

torchrun starts and watches the workers as usual; the roster, the order of the nodes and the end of a round are
agreed upon in etcd. torch finds this package by its entry point (group `torchrun.handlers`), in every process that
imports torchrun's library, so nothing is imported here before somebody asks for this backend by name.

It may start and stop no worker, and place no agent: that is torchrun's. `options` reads what torchrun was told,
`member` takes part in the agreement in a thread of torchrun's agent, `round_store` is the store in which the agents and
workers of one round meet, and `handler` is what torchrun calls.
"""

from __future__ import annotations

from collections.abc import Callable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from torch.distributed.elastic.rendezvous import RendezvousParameters

    from launcher.extensions.torchrun.handler import Handler


def handlers() -> Callable[[RendezvousParameters], Handler]:
    """Return the function that torch registers; torch calls this once, by the entry point."""
    return create


def create(parameters: RendezvousParameters) -> Handler:
    """torchrun's handler for one job. Raises ValueError for what cannot work, and torch's RendezvousConnectionError
    when the store does not come in time.
    """
    from launcher.extensions.torchrun.handler import open_handler

    return open_handler(parameters)
