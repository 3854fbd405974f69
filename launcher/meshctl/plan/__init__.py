"""`meshctl plan`: what meshrun would do with a cluster, worked out offline, told in words and drawn."""
