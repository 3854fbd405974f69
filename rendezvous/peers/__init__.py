"""Connections between agents: they show within milliseconds what a lease shows within seconds.

connections.py is what the driver uses; liveness.py is what a member knows from them, messages.py the messages of
members.
"""
