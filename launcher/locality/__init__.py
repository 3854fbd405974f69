"""Where this node is in the network, as a path of domains: `zone=a,spine=s1,leaf=l3`.

The sources (`explicit`, `slurm`, `kubernetes`, `clouds`, `interconnects`) each say what they know; `gather` asks all at
once within a limit; `keys` tells which key names which level; `merge`, pure, makes one path of the answers.

A source that fails costs a remark and its levels, never the start. Nothing here knows ranks or costs.
"""

from launcher.locality.contract import Hints, Level, Source

__all__ = ["Hints", "Level", "Source"]
