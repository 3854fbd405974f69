"""Connections between agents: they tell within milliseconds what a lease tells within seconds.

connections.py is what the driver uses, in front of one thread (connection_loop.py); liveness.py is what a member
knows by them, messages.py what members say.
"""
