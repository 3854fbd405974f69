"""Where this node stands in the network: the contract of a source, and the merge of what sources say."""

from launcher.locality.contract import Hints, Level, Source

__all__ = ["Hints", "Level", "Source"]
