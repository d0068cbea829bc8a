"""A connection's limits, with a client and a clock of the test's own."""

import asyncio
import json
from types import SimpleNamespace
from unittest.mock import Mock

import h11
import pytest
import uvicorn
from uvicorn.server import ServerState

from vitreous.config.server import ServerSettings
from vitreous.server import bodies
from vitreous.server.batching import AdmissionQueue
from vitreous.server.bodies import BODY_METER, BodyBudget, BodyMeter, read_body
from vitreous.server.connection import Connections
from vitreous.server.errors import ApiError
from vitreous.server.guard import Policy
from vitreous.server.metrics import ServerMetrics

SETTINGS = ServerSettings(max_connections=4, pause_seconds=10.0, min_bytes_per_second=1000)


class Transport:
    """A client that takes what it is told to."""

    def __init__(self):
        self.unsent, self.closing, self.aborted = 0, False, False

    def get_extra_info(self, name, default=None):
        if name == "socket":
            return SimpleNamespace(
                setsockopt=lambda *_: None, getsockname=lambda: ("::1", 1), getpeername=lambda: ("::1", 2), family=10
            )
        return default

    def is_closing(self):
        return self.closing

    def get_write_buffer_size(self):
        return self.unsent

    def write(self, data):
        self.unsent += len(data)

    def close(self):
        self.closing = True

    def abort(self):
        self.closing = self.aborted = True

    def resume_reading(self):
        pass

    pause_reading = resume_reading


class Clock:
    """Timers that go off when the test says so."""

    def __init__(self):
        self.now, self.timers = 0.0, []

    def time(self):
        return self.now

    def call_later(self, seconds, function, *given):
        timer = SimpleNamespace(at=self.now + seconds, function=function, given=given)
        timer.cancel = lambda: timer in self.timers and self.timers.remove(timer)
        self.timers.append(timer)
        return timer

    def create_task(self, work):
        work.close()
        return Mock()

    def pass_by(self, seconds):
        self.now += seconds
        for timer in sorted((one for one in self.timers if one.at <= self.now), key=lambda one: one.at):
            if timer in self.timers:
                self.timers.remove(timer)
                timer.function(*timer.given)


async def answer(scope, receive, send):
    """No request gets this far."""


@pytest.fixture
def connect():
    """Makes connections of one server, and has their clock."""
    config, state, clock, metrics = (
        uvicorn.Config(answer, log_config=None, access_log=False),
        ServerState(),
        Clock(),
        ServerMetrics(),
    )
    places = AdmissionQueue(1, 30)
    connections = Connections(SETTINGS, metrics, Policy(SETTINGS, places.check))

    def make():
        connection = connections.make(config, state, {}, _loop=clock)
        connection.connection_made(Transport())
        return connection

    make.clock, make.open, make.metrics, make.places = clock, connections.open, metrics, places
    return make


def answered(connect, length):
    """A connection whose answer, of so many bytes, is complete and not taken yet."""
    connection = connect()
    answer_next(connection, length)
    return connection


def answer_next(connection, length):
    """The same of a connection's next request."""
    if connection.parser.our_state is h11.DONE:
        connection.parser.start_next_cycle()
    connection.data_received(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
    connection.transport.unsent = length
    connection.parser.send(h11.Response(status_code=200, headers=[(b"content-length", b"0")]))
    connection.parser.send(h11.EndOfMessage())


def test_what_is_left_of_a_small_answer_is_waited_for_and_then_given_up(connect):
    """Too little for the transport to call it full; the connection was closed, which alone would wait for ever."""
    connection = answered(connect, 50_000)
    connection.transport.close()
    connect.clock.pass_by(10)
    assert connection.transport.aborted


def test_an_answer_is_taken_at_a_least_speed(connect):
    """A byte now and then does not hold a connection."""
    slow, steady = answered(connect, 50_000), answered(connect, 50_000)
    for _ in range(4):
        slow.transport.unsent -= 9_000
        steady.transport.unsent -= 11_000
        connect.clock.pass_by(10)
    assert slow.transport.aborted
    assert not steady.transport.aborted
    steady.transport.unsent = 0
    connect.clock.pass_by(10)
    assert not steady.transport.aborted


def test_the_next_answer_is_judged_by_itself(connect):
    """The first was taken, and the second comes before anybody has looked."""
    connection = answered(connect, 100)
    connect.clock.pass_by(4)
    answer_next(connection, 40_000)
    connect.clock.pass_by(6)
    assert not connection.transport.aborted
    connection.transport.unsent = 20_000
    connect.clock.pass_by(4)
    assert not connection.transport.aborted
    connect.clock.pass_by(10)
    assert connection.transport.aborted


def test_headers_that_trickle_are_cut_off(connect):
    """Also on a connection that has had its answer."""
    for make in (connect, lambda: answered(connect, 0)):
        connection = make()
        for _ in range(9):
            connection.data_received(b"X")
            connect.clock.pass_by(1)
        assert not connection.transport.aborted
        connection.data_received(b"X")
        connect.clock.pass_by(1)
        assert connection.transport.aborted


def test_a_burst_of_connections_leaves_as_many_as_are_wanted(connect):
    """Those that were cut off are still listed until the loop comes round to them."""
    connections = []
    for _ in range(20):
        connections.append(connect())
    assert len(connect.open) == 20
    assert [one.transport.closing for one in connections] == [True] * 16 + [False] * 4


def test_whoever_still_takes_an_answer_is_not_cut_off_for_others(connect):
    taking = answered(connect, 1000)
    others = [connect() for _ in range(6)]
    assert not taking.transport.closing
    assert sum(one.transport.closing for one in others) == 3


def test_whoever_sends_a_body_is_not_cut_off_for_those_who_send_nothing(connect):
    """A large image takes long to send, and may have begun before all others connected."""
    sending = connect()
    sending.data_received(b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n")
    others = []
    for _ in range(10):
        others.append(connect())
        sending.data_received(b"some")
    assert not sending.transport.closing
    assert [one.transport.closing for one in others] == [True] * 7 + [False] * 3


def test_what_is_no_http_is_told_so_in_json_and_counted(connect):
    connection, written = connect(), []
    connection.transport.write = written.append
    connection.data_received(b"GET\r\n\r\n")
    head, _, body = b"".join(written).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    assert list(json.loads(body)) == ["error"]
    assert b"content-type: application/json" in head
    assert b"default-src 'none'" in head
    assert connection.transport.closing
    assert b'vitreous_requests_total{route="none",status="400"} 1.0' in connect.metrics.text()


POST = b"POST /predict?top_k=1 HTTP/1.1\r\nHost: localhost\r\nContent-Length: 8\r\n\r\n"


def test_a_image_without_a_place_is_refused_before_anything_is_begun_for_it(connect):
    connection, written = connect(), []
    connection.transport.write = written.append
    with connect.places.take(1):
        for _ in range(3):  # on one connection, each with its body
            connection.data_received(POST + b"half")
            connection.data_received(b"half")
    assert len(written) == 3
    head, _, body = written[-1].partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 503 Service Unavailable\r\n")
    assert json.loads(body)["error"].startswith("1 ")  # image is waiting
    assert f"content-length: {len(body)}".encode() in head
    assert b"retry-after: 1" in head
    assert b"default-src 'none'" in head
    assert connection.protocol.cycle is None  # no request of the application's
    assert b'vitreous_requests_total{route="/predict",status="503"} 3.0' in connect.metrics.text()
    connection.data_received(POST + b"12345678")
    assert connection.protocol.cycle is not None
    assert not connection.protocol.cycle.more_body


def test_all_others_take_the_usual_way(connect, subtests):
    """Who may not ask is not told how busy the server is."""
    for request in (
        POST.replace(b"localhost", b"example.com"),
        POST.replace(b"\r\n\r\n", b"\r\nOrigin: http://example.com\r\n\r\n"),
        POST.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"),
        POST.replace(b"1.1", b"1.0"),
        POST.replace(b"POST", b"PUT"),
        POST.replace(b"/predict", b"/explain"),
    ):
        with subtests.test(request):
            connection, written = connect(), []
            connection.transport.write = written.append
            with connect.places.take(1):
                connection.data_received(request)
            assert written == []
            assert connection.protocol.cycle is not None


def test_request_upon_request_takes_the_usual_way(connect):
    """Else one client's could keep the loop busy, or fill the memory with answers that it does not take."""
    connection, other, written = connect(), connect(), []
    connection.transport.write = written.append
    with connect.places.take(1):
        connection.data_received((POST + b"12345678") * 100)
        other.data_received(POST + b"12345678")
        other.data_received(POST + b"12345678")  # the answer before it, it has not taken
    assert len(written) == 1
    assert connection.protocol.cycle is not None
    assert other.protocol.cycle is not None


def test_a_connection_whose_body_was_not_wanted_goes_on(connect):
    """It is given a little while for the rest of the body, and then as long as any other for the next request."""
    with connect.places.take(1):
        complete, half = connect(), connect()
        complete.data_received(POST + b"half")
        complete.data_received(b"half")
        half.data_received(POST + b"half")
    connect.clock.pass_by(3)
    assert half.transport.aborted
    assert not complete.transport.aborted
    connect.clock.pass_by(10)
    assert complete.transport.aborted


class Sender:
    """A request whose body comes by the test's clock: parts of (seconds, bytes)."""

    def __init__(self, clock, parts):
        self.clock, self.parts, self.headers = clock, list(parts), {}
        self.scope = {BODY_METER: BodyMeter(BodyBudget(10**9), ServerMetrics())}

    async def receive(self):
        seconds, count = self.parts.pop(0)
        self.clock.now += seconds
        return {"type": "http.request", "body": bytes(count), "more_body": bool(self.parts)}


def read(monkeypatch, parts):
    clock = Clock()
    monkeypatch.setattr(bodies, "time", SimpleNamespace(monotonic=clock.time))
    return len(asyncio.run(read_body(Sender(clock, parts), SETTINGS))), clock.now


def test_a_fast_beginning_does_not_pay_for_a_slow_rest(monkeypatch):
    with pytest.raises(ApiError) as refused:
        read(monkeypatch, [(0.1, 10**6), *[(1.0, 10)] * 1000])
    assert refused.value.status == 408
    assert bodies.time.monotonic() < 25  # by the average it would be 1000


def test_a_steady_body_may_take_long(monkeypatch):
    assert read(monkeypatch, [(1.0, 1100)] * 100) == (110_000, 100)
