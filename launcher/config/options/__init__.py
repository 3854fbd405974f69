"""The table of options, the readers of their values, and the command line."""
