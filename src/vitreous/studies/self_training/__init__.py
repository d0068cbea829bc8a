"""Noisy Student: the rounds of a self-training, their students, labels and pages."""
