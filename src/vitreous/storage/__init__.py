"""Files that are whole or absent, manifests, locks, and what may be overwritten."""
