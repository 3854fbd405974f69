"""What carries out the machine's actions: requests to the store, watches, timers, and the connections to peers.

`driver` is the loop between them and the machine, `worker_pool` the threads for calls that may be slow, `store_health`
what people are told of a store in trouble.

It decides nothing. Results come back as events in the order in which they are known, and no thread but the caller's
runs the machine.
"""
