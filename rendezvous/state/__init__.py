"""What one member knows and has under way: the copy of the store, requests to it, and a section for each part."""
