"""TPU chips, slices and types, and the metadata server that describes them."""
