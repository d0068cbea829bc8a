"""Models on disk: our own bundle, and files of others."""
