"""How a server listens, and what it refuses."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ServerSettings:
    """Where a server listens, whom it answers, and its limits."""

    host: str = "127.0.0.1"
    port: int = 8000  # the port; 0 for any that is free
    token: str | None = None  # what a request must show; None answers everybody who can reach the address
    allowed_origins: tuple[str, ...] = ()  # of web pages elsewhere that may send requests; "*" allows all
    samples: tuple[tuple[str, bytes], ...] = ()
    """Name and content of image files that the page offers to try; () for images of the package."""
    max_body_bytes: int = 32 * 2**20  # most bytes of one request
    max_total_body_bytes: int = 256 * 2**20  # most bytes of all requests that are being read or answered
    max_pixels: int = 2**25  # most pixels of an image that is no JPEG; of a JPEG, as many as are ever decoded
    max_total_pixels: int = 2**27  # most pixels that are decoded at once, per model
    max_queue_size: int = 128  # most images waiting or being computed, per model
    max_explanations: int = 8  # most requests at once that look inside a model, per model
    response_seconds: float = 30.0  # time within which the answer to an image must have begun, or it is given up
    grace_seconds: float = 10.0
    """Time for what has begun then, and so, after `response_seconds`, the longest that the end of a server takes."""
    header_seconds: float = 10.0  # time within which a client must have sent a request's headers
    pause_seconds: float = 10.0  # longest time for which a client may send, or take, nothing
    min_bytes_per_second: int = 16_384
    """Least speed at which a client sends its body and takes its answer, in each span of `pause_seconds`."""
    max_connections: int = 512
    """Most connections; beyond, those that wait for their client are closed, the longest wait first."""

    @property
    def longest_seconds(self) -> float:
        """Longest time from when an image is read until it is answered or given up."""
        return self.response_seconds + self.grace_seconds
