"""What one member knows and has in progress: the watch cache, requests to the store, and a section for each part."""
