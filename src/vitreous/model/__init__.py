"""Networks and their families: the Vision Transformer, and the table where others are added."""
