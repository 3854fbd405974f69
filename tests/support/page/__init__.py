"""What tests of the live page share: a run that is made up, and a browser."""
