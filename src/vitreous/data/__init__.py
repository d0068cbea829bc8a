"""From bytes to batches: what a dataset is, how its images are decoded and varied, and in which order they come."""
