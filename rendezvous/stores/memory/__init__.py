"""A store within the process: for a single machine, for the simulation, and for an agent that serves others.

`keyspace` has the keys, leases and history with etcd's meaning, `watch` tells who follows them, `store` is the contract
over both. It is not durable: it ends with its process, and says so.
"""
