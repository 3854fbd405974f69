"""What a cloud announces about this machine before it takes it away, as its metadata server says."""
