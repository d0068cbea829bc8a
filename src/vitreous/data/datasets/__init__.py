"""Public datasets: one table of what they are and where they come from, and readers of their original files."""
