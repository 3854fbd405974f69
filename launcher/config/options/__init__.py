"""The options: one table of rows, the readers of their values, and what the command line makes of them.

A row of `table` says all about an option: its names, its variable, its reader, its help, its default, and the field of
Config. `command_line` finds each value and where it came from, `rendezvous` and `network` hold torchrun's rules between
the rendezvous options, and `remarks` says what was given and is not read.

A reader turns text into a value or raises UsageError; it may not look at another option.
"""
