"""A server's metrics, for Prometheus."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)
STAGES = ("decode", "wait", "compute", "explain")
_CREATED = re.compile(rb"(?m)^(# \w+ )?\w+_created[ {].*\n")


class ServerMetrics:
    """The metrics of one server; each server of a process has its own registry."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()

        def histogram(name: str, text: str, labels: Sequence[str], buckets: Sequence[float] = SECONDS) -> Histogram:
            return Histogram(f"vitreous_{name}", text, labels, buckets=buckets, registry=registry)

        self._requests = Counter(
            "vitreous_requests", "Requests answered, by route and status.", ["route", "status"], registry=registry
        )
        self._seconds = histogram("request_seconds", "From a request's headers to the end of its answer.", ["route"])
        self.body_seconds = histogram("read_seconds", "Until a request's body was read.", [])
        self._stages = histogram(
            "stage_seconds",
            "Of one image: decode, wait for the engine; of a batch: compute; of a look inside: explain.",
            ["model", "stage"],
        )
        self._batches = histogram("batch_images", "Images computed together.", ["model"], BATCHES)
        self._waiting = Gauge(
            "vitreous_queue_images", "Images that wait or are computed.", ["model"], registry=registry
        )
        ProcessCollector(registry=registry)

    def for_model(self, name: str, waiting: Callable[[], int]) -> ModelMetrics:
        """waiting: returns how many images wait or are computed."""
        self._waiting.labels(name).set_function(waiting)
        return ModelMetrics(name, self._registry, self._stages, self._batches.labels(name))

    def request(self, route: str, status: int, seconds: float | None = None) -> None:
        """Count a request. route: the route's template, never a path that a client wrote; "none" if it was not HTTP."""
        self._requests.labels(route, str(status)).inc()
        if seconds is not None:
            self._seconds.labels(route).observe(seconds)

    def text(self) -> bytes:
        """Without the time at which each counter was made, which Prometheus does not use."""
        return _CREATED.sub(b"", generate_latest(self._registry))


class ModelMetrics:
    """The metrics of one model."""

    def __init__(self, name: str, registry: CollectorRegistry, stages: Histogram, batches: Histogram) -> None:
        self._name, self._registry, self._batches = name, registry, batches
        self.stages = {stage: stages.labels(name, stage) for stage in STAGES}

    def totals(self) -> dict[str, tuple[int, float]]:
        """How often each stage ran, and its seconds in all."""

        def value(what: str, stage: str) -> float:
            labels = {"model": self._name, "stage": stage}
            return self._registry.get_sample_value(f"vitreous_stage_seconds_{what}", labels) or 0.0

        return {stage: (round(value("count", stage)), value("sum", stage)) for stage in STAGES}

    def batch(self, count: int, seconds: float) -> None:
        self._batches.observe(count)
        self.stages["compute"].observe(seconds)
