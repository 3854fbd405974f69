"""`meshctl plan`: meshrun's plan for a cluster, computed offline, as text and as a picture."""
