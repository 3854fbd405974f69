"""The live page of a run: a small server, and one HTML file without any other file or host."""
