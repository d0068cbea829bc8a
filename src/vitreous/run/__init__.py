"""What every training in a run folder shares: the request, the folder, the skeleton from images to report."""
