"""From bytes to batches: what a dataset is, how its pictures are decoded and varied, and in which order they come."""
