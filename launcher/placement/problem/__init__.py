"""The placement problem in arrays: traffic, hops, cost and lower bounds."""
