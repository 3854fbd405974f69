"""What every member does: join, keep its lease, run its part of a round, endure an outage, leave.

Each module is a part of the machine with its own section of the state. It reads other sections, changes its own, and
asks for anything else by an intent (rendezvous/state/intents.py).

No part sets a timer or calls a store; it returns actions. A member whose lease may have ended says so first and ends
its workers, whatever else is going on.
"""
