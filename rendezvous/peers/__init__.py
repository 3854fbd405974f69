"""Connections between agents: they show within milliseconds what a lease shows in seconds, and carry notes.

`connections` is what the driver uses, `dialer` and `dial_attempt` say when somebody is dialled, `handshake` who is
spoken to, `messages` what is said. `liveness` is what a member knows from all of them.

A connection proves presence, only refused dials prove absence, and silence proves nothing. The store is not read here.
"""
