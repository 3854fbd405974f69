"""The store that an agent serves to the others, in etcd's protocol.

server.py listens; connections.py, http2.py and calls.py are the transport. keys.py has the service KV, leases.py
Lease, watches.py Watch, authentication.py what the token opens: questions in, answers or `ServedFailure` out, on the
memory store. encoding.py is between etcd's keys, which are bytes, and ours, which are text.
"""
