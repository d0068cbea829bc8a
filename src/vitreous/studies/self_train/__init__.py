"""Noisy Student: a teacher, and students that learn from its labels."""
