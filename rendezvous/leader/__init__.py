"""Who leads, and what who leads does: observe, decide, write.

`election` and `takeover` say who; `observe` makes a View of the store and of presence, `policy` decides on it, `leader`
carries that out, `commit` commits rounds.

Every write of a leader is guarded by what it was decided on (`guarded_write`), so that one that leads no longer changes
nothing. A leader keeps nothing that is not in the store: the next one finds all it needs there.
"""
