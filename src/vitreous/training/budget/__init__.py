"""A time that the person chose: what fits into it, and as many images and steps as do."""
