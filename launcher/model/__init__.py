"""Values that all packages share: the mesh, a node, the tree of the network, costs, reasons and texts.

They are frozen, and import nothing but rendezvous; most are pure. `sentences` is the only place with the English of the
launcher's reasons, `errors` has the errors that people see and their exit codes, `console` the agent's own lines.

What only one package needs does not belong here.
"""
