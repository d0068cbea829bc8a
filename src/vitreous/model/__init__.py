"""The Vision Transformer family."""
