"""This node's locality in the network: the contract of a source, and the merge of results."""

from launcher.locality.contract import Hints, Level, Source

__all__ = ["Hints", "Level", "Source"]
