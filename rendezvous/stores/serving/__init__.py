"""What etcd's services answer, on the memory store: questions in, answers or `Refused` out; no network here.

keys.py has the service KV, leases.py Lease, watches.py Watch, guard.py what the token opens; `text.py` is
between etcd's keys, which are bytes, and ours, which are text. stores/server.py puts all of it behind gRPC.
"""
