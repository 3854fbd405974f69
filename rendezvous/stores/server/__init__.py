"""The store that an agent serves to the others, with etcd's protocol.

server.py listens and handles calls, connections.py and http2.py are the transport, services.py answers.
"""
