"""Plain frozen descriptions of what to build and how to train it. Nothing here knows torch."""
