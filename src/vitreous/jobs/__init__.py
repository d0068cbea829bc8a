"""What each command does, as functions that a notebook can call with the same names and defaults.

Whatever computes begins here, from the command line and from Python alike, so this is where the process is made to keep
its memory. Whoever only builds a network (`vitreous.ViT`) has a process of their own and keeps it as it is.
"""

from vitreous.allocator import keep_memory

keep_memory()
