"""The search for the cheapest layout, in a time that grows with the number of nodes only.

`search` is the entry. `line` and `fit` make first layouts, `improve`, `explore` and `refine` make them better, `runs`
lays out items of different sizes. All are deterministic: a limit is a number of steps, never a time.
"""
