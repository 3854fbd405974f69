"""The live page of a run: a server of the standard library, and one HTML file without any other file or host."""
