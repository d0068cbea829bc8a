"""Grids and sequences of trainings: compare, transfer, self-train."""
