"""The table of options, the parsers of their values, and the command line."""
