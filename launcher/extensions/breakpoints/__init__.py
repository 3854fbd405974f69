"""What `breakpoint()` does in a worker that shares its terminal with others.

`rank_debugger` is all there is. A worker loads it by path at its first breakpoint (launcher/ranks/main_start.py); no
agent does.
"""
