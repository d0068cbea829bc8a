"""Files that are whole or absent, manifests, digests, locks, what may be overwritten, and one cache by content."""
