"""A time that the person chose: what fits into it, and as many pictures and steps as do."""
