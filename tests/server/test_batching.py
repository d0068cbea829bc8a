"""The queue: what is computed together, and what becomes of what cannot be."""

import asyncio
import threading
import time
from concurrent import futures
from types import SimpleNamespace

import pytest
import torch

from support.serving import GatedEngine, gated, make_image, running, wait_for
from vitreous.server import app, batching, served_model
from vitreous.server.batching import AdmissionQueue, Batcher
from vitreous.server.errors import ApiError
from vitreous.server.metrics import ServerMetrics


class Computing(GatedEngine):
    """Computes what the test says: a function of the images, or one for each output."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def outputs(self, images, names):
        functions = self.function if isinstance(self.function, dict) else dict.fromkeys(names, self.function)
        return [functions[name](images) for name in names]


def make_batcher(function, calls=1):
    """Of batches of four."""
    engine = Computing(function)
    engine.max_concurrency = calls
    return Batcher(engine, AdmissionQueue(100, 30), ServerMetrics().for_model("m", lambda: 0), grace_seconds=10.0)


def views(*numbers):
    return [torch.full((1, 1, 1), number) for number in numbers]


def ask_each(batcher, *numbers, seconds=30):
    """What becomes of single questions that are asked at once."""

    async def ask():
        asked = (batcher.compute(("it",), views(number), seconds) for number in numbers)
        found = await asyncio.gather(*asked, return_exceptions=True)
        return [one if isinstance(one, Exception) else int(one[0][0]) for one in found]

    return asyncio.run(ask())


def test_what_waits_is_computed_together_up_to_the_best_batch():
    sizes = []

    def double(images):
        sizes.append(len(images))
        return 2 * images[:, 0, 0, 0]

    assert ask_each(make_batcher(double), *range(10)) == [2 * number for number in range(10)]
    assert sizes == [4, 4, 2]


def test_an_engine_that_takes_two_batches_at_once_is_given_two():
    both = threading.Barrier(2)

    def meet(images):
        both.wait(60)
        return images[:, 0, 0, 0]

    assert ask_each(make_batcher(meet, calls=2), *range(8)) == list(range(8))


def test_one_bad_image_fails_alone():
    def fail_of_three(images):
        if (images == 3).any():
            raise ValueError("three")
        return images[:, 0, 0, 0]

    found = ask_each(make_batcher(fail_of_three), *range(8))
    assert [one for one in found if not isinstance(one, Exception)] == [0, 1, 2, 4, 5, 6, 7]
    assert isinstance(found[3], ValueError)


def test_different_questions_are_not_mixed():
    batches = []

    def first(images):
        batches.append("first")
        return images[:, 0, 0, 0]

    def second(images):
        batches.append("second")
        return -images[:, 0, 0, 0]

    async def ask():
        batcher = make_batcher({"first": first, "second": second})
        asked = [("first",), ("second",), ("first",), ("first", "second")]
        return await asyncio.gather(*(batcher.compute(names, views(n), 30) for n, names in enumerate(asked)))

    found = [[int(values[0]) for values in one] for one in asyncio.run(ask())]
    assert found == [[0], [-1], [2], [3, -3]]
    assert batches == ["first", "second", "first", "second"]


def test_whoever_waited_too_long_is_told_so():
    found = ask_each(make_batcher(lambda images: images[:, 0, 0, 0]), 1, 2, seconds=-1)
    assert all(isinstance(one, ApiError) and one.status == 503 and "Retry-After" in one.headers for one in found)


def test_who_asks_just_when_the_worker_ends_is_answered_too():
    def same(images):
        return images[:, 0, 0, 0]

    async def ask_twice():
        batcher, ending = make_batcher(same), asyncio.Event()
        count = batcher.metrics.batch

        def batch(*figures):  # the worker's last step, so whoever waits for this goes on before anything else does
            count(*figures)
            ending.set()

        batcher.metrics.batch = batch
        first = asyncio.ensure_future(batcher.compute(("it",), views(1), 30))
        await ending.wait()
        async with asyncio.timeout(20):
            second = await batcher.compute(("it",), views(2), 30)
        return int((await first)[0][0]), int(second[0][0])

    assert asyncio.run(ask_twice()) == (1, 2)


def test_places_are_counted_and_given_back():
    queue = AdmissionQueue(3, 30)
    with queue.take(2):
        queue.check(1)
        with pytest.raises(ApiError, match=r"^2 "):
            queue.check(2)
    queue.check(3)
    with pytest.raises(ApiError, match="3") as refused:
        queue.check(4)
    assert refused.value.status == 413


def test_nobody_is_let_in_who_would_wait_too_long():
    """A slow model has fewer places: what is accepted is answered in time."""
    queue = AdmissionQueue(100, 30)
    queue.seconds_per_image = 40.0
    with queue.take(1), pytest.raises(ApiError) as refused:
        queue.check()
    assert refused.value.status == 503
    assert int(refused.value.headers["Retry-After"]) > 30


def test_a_request_of_several_counts_its_own_images():
    """Let in, they would keep the engine busy for half a minute, and be given up then."""
    queue = AdmissionQueue(100, 30)
    queue.set_seconds_per_image(1.0)
    queue.check(30)
    with pytest.raises(ApiError, match=r"^31 .* 30 ") as refused:
        queue.check(31)
    assert refused.value.status == 413
    with queue.take(10), pytest.raises(ApiError, match=r"^10 ") as refused:
        queue.check(21)
    assert refused.value.status == 503
    with queue.take(10):
        queue.check(20)


def test_one_image_is_let_in_however_slow_the_model_is():
    queue = AdmissionQueue(100, 30)
    queue.set_seconds_per_image(40.0)
    queue.check()
    with pytest.raises(ApiError, match=" 1 "):
        queue.check(2)


def test_a_slow_hour_does_not_refuse_large_requests_for_ever():
    """Nothing would be computed that shows that it is over."""
    queue = AdmissionQueue(100, 30)
    queue.set_seconds_per_image(0.1)
    queue.seconds_per_image = 5.0
    with queue.take(8), pytest.raises(ApiError) as refused:
        queue.check(8)
    assert refused.value.status == 503
    assert queue.seconds_per_image < 5.0


def test_a_place_is_kept_for_a_image_that_is_being_sent(monkeypatch):
    """Others are refused before they have sent theirs; but whoever dawdles keeps no place."""
    now = 100.0
    monkeypatch.setattr(batching, "time", SimpleNamespace(monotonic=lambda: now))
    queue = AdmissionQueue(2, 30)
    with queue.take(1), queue.receiving():
        with pytest.raises(ApiError, match=r"^2 "):
            queue.check_before_receiving()
        queue.check(1)  # one that has been read takes what is free
        now += 1
        queue.check_before_receiving()
        with queue.receiving(), pytest.raises(ApiError):
            queue.check_before_receiving()
    with queue.take(1):
        queue.check_before_receiving()


def test_a_place_is_kept_from_the_headers_on(monkeypatch):
    """Of many that come together, those without a place are told before any other is begun."""
    now = 100.0
    monkeypatch.setattr(batching, "time", SimpleNamespace(monotonic=lambda: now))
    queue = AdmissionQueue(2, 30)
    queue.reserve()
    queue.reserve()
    with pytest.raises(ApiError, match=r"^2 "):
        queue.reserve()
    with queue.receiving(), queue.receiving(), pytest.raises(ApiError):  # the two that have one
        queue.reserve()
    queue.reserve()
    queue.reserve()
    now += 1  # neither went on
    queue.reserve()


def test_a_full_queue_refuses_at_once_and_answers_what_it_accepted():
    engine = GatedEngine()
    with running(gated(engine), max_queue_size=4) as server:
        engine.batches.clear()
        while engine.entered.acquire(blocking=False):
            pass
        engine.gate.clear()
        with futures.ThreadPoolExecutor(12) as pool:
            jobs = [pool.submit(server.client.post, "/predict", content=make_image(seed=seed)) for seed in range(12)]
            done, waiting = set(), set(jobs)
            while len(done) < 8:  # the engine stands still, so these are refusals
                finished, waiting = futures.wait(waiting, return_when=futures.FIRST_COMPLETED)
                done |= finished
            assert {job.result().status_code for job in done} == {503}
            for job in done:
                assert int(job.result().headers["Retry-After"]) >= 1
                assert list(job.result().json()) == ["error"]
            engine.gate.set()
            assert [job.result().status_code for job in waiting] == [200] * 4
    assert sum(engine.batches) == 4


def test_nothing_is_computed_for_a_client_that_left():
    engine = GatedEngine()
    content = make_image()
    with running(gated(engine)) as server:
        while engine.entered.acquire(blocking=False):
            pass
        engine.batches.clear()
        engine.gate.clear()
        with futures.ThreadPoolExecutor(1) as pool:
            first = pool.submit(server.client.post, "/predict", content=content)
            assert engine.entered.acquire(timeout=60)
            with server.connect() as leaving:
                head = f"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(content)}\r\n\r\n"
                leaving.sendall(head.encode() + content)
                wait_for(lambda: 'queue_images{model="gated"} 2.0' in server.client.get("/metrics").text)
            wait_for(lambda: 'route="/predict",status="499"} 1.0' in server.client.get("/metrics").text)
            engine.gate.set()
            assert first.result().status_code == 200
        assert server.client.post("/predict", content=content).status_code == 200
    assert engine.batches == [1, 1]


def test_a_server_whose_engine_hangs_says_so():
    """Whatever watches it would otherwise leave it as it is."""
    engine = GatedEngine()
    health = ("/v2/health/live", "/v2/health/ready", "/v2/models/gated/ready")
    with running(gated(engine), response_seconds=0.5, grace_seconds=0.1) as server:

        def statuses():
            return {server.client.get(path).status_code for path in health}

        assert statuses() == {200}
        engine.gate.clear()
        assert server.client.post("/predict", content=make_image()).status_code == 503
        wait_for(lambda: statuses() == {503}, "the engine hangs")
        assert "restart" in server.client.get(health[0]).json()["error"]
        engine.gate.set()
        wait_for(lambda: statuses() == {200}, "it computes again")


def test_no_more_pixels_are_decoded_at_once_than_the_memory_has_room_for(monkeypatch):
    """60 blank images of 33 million pixels are a few megabytes, and gigabytes once they are decoded."""
    decoding, most, lock, decode = 0, 0, threading.Lock(), served_model.make_view

    def count(*given):
        nonlocal decoding, most
        with lock:
            decoding += 1
            most = max(most, decoding)
        time.sleep(0.05)
        try:
            return decode(*given)
        finally:
            with lock:
                decoding -= 1

    monkeypatch.setattr(served_model, "make_view", count)
    monkeypatch.setattr(app, "usable_cores", lambda: 12)
    content = make_image(size=(100, 100))
    limits = {"max_pixels": 10_000, "max_total_pixels": 30_000}
    with running(gated(GatedEngine()), **limits) as server, futures.ThreadPoolExecutor(12) as pool:
        found = list(pool.map(lambda _: server.client.post("/predict", content=content), range(12)))
    assert {one.status_code for one in found} == {200}
    assert most == 3
