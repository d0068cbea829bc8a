"""WebDataset shards: tar files of images and labels, read in place, here or far away, and never unpacked."""
