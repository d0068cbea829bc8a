"""What a model says of images: of a few at once, or of millions in parts that are each done once."""
