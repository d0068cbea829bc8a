"""What models learned, depth by depth, over many images: for the comparison of models."""
