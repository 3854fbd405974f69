"""The store that an agent serves to the others, with etcd's protocol, so that one client fits both.

`server` listens and handles calls, `connections` and `http2` are the transport, `services` answers with the memory
store. One thread does all of it, within limits for whoever has not authenticated.

It serves one run. It may not hold up the agent that serves it, which has its own membership through the same store.
"""
