"""What the user asks for: options, variables and the scheduler's environment in, one frozen Config out.

`options` reads single values, `config` has the rules between them and the sections, one for each part of an agent
(docs/internals/decisions/0062-sections-of-config.md). Beside them: schedulers, credentials, the files that options
name, plug-ins, and the help, which is made from the table.

A Config is validated once and trusted afterwards. Nothing here looks at devices or at the network, and nothing below
this package reads a command line or a variable of the user's.
"""
