"""The seam between the kernel of the agent and its features.

The kernel starts, watches and ends workers as the agreement says. A feature is a part (`part`): it is told what happens
(`Fact`) and asks for what it needs (`Effect`), and the kernel knows none by name. `host` calls the parts of an agent,
and survives each of them. `running_round` is what parts may look at of the workers here.
Which parts there are is decided in launcher/agent/composition.py.

Nothing here may import a feature, and no part may import the loop.
"""
