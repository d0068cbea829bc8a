"""What models learned, depth by depth, over many pictures: for the comparison of models."""
