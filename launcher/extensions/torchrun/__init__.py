"""The plug-in for torchrun: its own launcher, with this project's agreement and placement.

    torchrun --rdzv-backend=meshrun --rdzv-endpoint=etcd-0:2379 --rdzv-id=job --nnodes=2:4 train.py

torchrun starts and watches the workers as usual; the roster, the order of the nodes and the end of a round are
agreed upon in etcd. torch finds meshrun.py by its entry point (group `torchrun.handlers`), in every process that
imports torchrun's library, so nothing is imported there before somebody asks for this backend by name.

It may start and stop no worker, and place no agent: that is torchrun's. `options` reads what torchrun was told,
`member` takes part in the agreement in a thread of torchrun's agent, `round_store` is the store in which the agents and
workers of one round meet, and `handler` is what torchrun calls; meshrun.py makes one.
"""
