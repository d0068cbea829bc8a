"""Ports for servers that must be told theirs before they listen."""

import random
import socket

BELOW = 32768
"""Where Linux begins with those that it hands out itself, to any process that connects or asks for any port."""


def free_port():
    """One that nobody listens at, and that the system gives to nobody else meanwhile."""
    draw = random.SystemRandom()  # else tests that run side by side, with the same seeds, would draw the same
    for _ in range(1000):
        with socket.socket() as found:
            port = draw.randrange(20000, BELOW)
            try:
                found.bind(("", port))
            except OSError:
                continue
            return port
    raise AssertionError("no port is free")
