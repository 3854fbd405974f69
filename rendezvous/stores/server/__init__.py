"""The store that an agent serves to the others, with etcd's protocol.

server.py listens; connections.py, http2.py and calls.py are the transport. keys.py is the KV service, leases.py Lease,
watches.py Watch, authentication.py the check of the token: requests in, responses or `ServedFailure` out, on the memory
store. encoding.py converts between etcd's keys, which are bytes, and the memory store's, which are text.
"""
