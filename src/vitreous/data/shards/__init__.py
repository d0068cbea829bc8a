"""WebDataset shards: tar files of pictures and labels, read in place, here or far away, and never unpacked."""
