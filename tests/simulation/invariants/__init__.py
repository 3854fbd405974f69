"""The invariants, checked after every step against models that are independent of the protocol."""
