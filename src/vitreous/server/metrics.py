"""What a server counts, for Prometheus."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)


class ServerMetrics:
    """The counters of one server; several servers of a process have each their own."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self._requests = Counter(
            "vitreous_requests", "Requests answered, by route and status.", ["route", "status"], registry=registry
        )
        self._seconds = Histogram(
            "vitreous_request_seconds",
            "From a request's headers to the end of its answer.",
            ["route"],
            buckets=SECONDS,
            registry=registry,
        )
        self._body = Histogram(
            "vitreous_read_seconds", "Until a request's body was read.", buckets=SECONDS, registry=registry
        )
        self._stages = Histogram(
            "vitreous_stage_seconds",
            "Of one image: decode, wait for the engine; of a batch: compute; of a look inside: explain.",
            ["model", "stage"],
            buckets=SECONDS,
            registry=registry,
        )
        self._batches = Histogram(
            "vitreous_batch_images", "Images computed together.", ["model"], buckets=BATCHES, registry=registry
        )
        self._waiting = Gauge(
            "vitreous_queue_images", "Images that wait or are computed.", ["model"], registry=registry
        )
        ProcessCollector(registry=self.registry)

    def of_model(self, name: str, waiting: Callable[[], int]) -> ModelMetrics:
        """The counters of one model. waiting: how many of its images wait or are computed."""
        self._waiting.labels(name).set_function(waiting)
        stages = {stage: self._stages.labels(name, stage) for stage in ("decode", "wait", "compute", "explain")}
        return ModelMetrics(stages, self._batches.labels(name))

    def request(self, route: str, status: int, seconds: float) -> None:
        """Count a request. route: as the application knows it, never what a client wrote."""
        self._requests.labels(route, str(status)).inc()
        self._seconds.labels(route).observe(seconds)

    def no_request(self, status: int) -> None:
        """Count an answer to what was no request of HTTP."""
        self._requests.labels("none", str(status)).inc()

    def body(self, seconds: float) -> None:
        """Count the body of a request, read in so many seconds."""
        self._body.observe(seconds)

    def text(self) -> bytes:
        """All of them, in Prometheus' text format."""
        return generate_latest(self.registry)


class ModelMetrics:
    """The counters of one model."""

    def __init__(self, stages: dict[str, Histogram], batches: Histogram) -> None:
        self._stages, self._batches = stages, batches

    def batch(self, count: int, seconds: float) -> None:
        """So many images were computed together, in so many seconds."""
        self._batches.observe(count)
        self._stages["compute"].observe(seconds)

    def waited(self, seconds: float) -> None:
        """So long did an image wait for the engine."""
        self._stages["wait"].observe(seconds)

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        """Within, something is decoded or explained."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self._stages[stage].observe(time.perf_counter() - started)
