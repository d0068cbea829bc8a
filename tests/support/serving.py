"""A server in a thread of the test's own process, on a port that is free."""

import io
import socket
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass

import httpx
from PIL import Image

from support.colours import COLOURS, PREPROCESS, pixels
from vitreous import ViTConfig
from vitreous.config.server import ServerSettings
from vitreous.inference.engine import InferenceModel, TorchEngine
from vitreous.server.running import Server, address_of, listen
from vitreous.server.served_model import ModelToServe
from vitreous.weights.bundle import load_bundle

PATIENCE = 60.0
"""Seconds until a test gives up waiting."""


def make_image(colour="red", seed=0, kind="PNG", size=(20, 24)):
    """The bytes of a file."""
    file = io.BytesIO()
    Image.fromarray(pixels(colour, seed, size)).save(file, kind)
    return file.getvalue()


def opened(path, name="colours"):
    """A bundle as the server is handed it."""
    bundle = load_bundle(path)
    engine = TorchEngine(bundle.model, bundle.preprocess)
    return ModelToServe(name, InferenceModel(engine, bundle.model.config, bundle.labels, path, bundle.model), bundle)


@dataclass
class Running:
    """A server, and a client of it."""

    address: str
    client: httpx.Client

    def connect(self):
        """A bare connection."""
        host, port = self.address.removeprefix("http://").split(":")
        return socket.create_connection((host, int(port)), timeout=60)


@contextmanager
def running(*models, **settings):
    """The models, served."""
    limits = ServerSettings(port=0, **settings)
    ready = threading.Event()
    with listen(limits) as bound:
        server = Server(models, limits, ready.set)
        thread = threading.Thread(target=server.run, args=([bound],))
        thread.start()
        assert ready.wait(120)
        address = address_of(bound)
        try:
            with httpx.Client(base_url=address, timeout=120) as client:
                yield Running(address, client)
        finally:
            server.should_exit = True
            thread.join(120)
            assert not thread.is_alive()


@contextmanager
def loading():
    """A server that loads its models until the test sets the event that this gives beside its address."""
    gate, settings = threading.Event(), ServerSettings(port=0)

    def models():
        assert gate.wait(120)
        yield gated(GatedEngine())

    with listen(settings) as bound:
        server = Server(models(), settings)
        thread = threading.Thread(target=server.run, args=([bound],))
        thread.start()
        try:
            yield address_of(bound), gate
        finally:
            gate.set()
            server.should_exit = True
            thread.join(120)


class GatedEngine:
    """Answers when it is let through: each image's score of a class is its first pixel of that channel."""

    name, precision, preprocess, classes = "torch", "fp32", PREPROCESS, 3
    batch_size, max_concurrency = 4, 1

    def __init__(self):
        self.gate = threading.Event()
        self.gate.set()
        self.batches = []
        self.entered = threading.Semaphore(0)

    def logits(self, images):
        self.batches.append(len(images))
        self.entered.release()
        assert self.gate.wait(300)  # longer than a server that waits for it is waited for
        return images[:, :, 0, 0].float() / 255

    def outputs(self, images, names):
        return [self.logits(images)] * len(names)


def gated(engine, name="gated"):
    """Such an engine as the server is handed it."""
    config = ViTConfig(width=32, depth=1, heads=2, mlp_width=64, patch=8, image_size=(16, 16), classes=3)
    return ModelToServe(name, InferenceModel(engine, config, COLOURS, None, "gated"), None)


def wait_for(question, what=""):
    """The first answer that is not empty, of a machine that does other things too."""
    until = time.monotonic() + PATIENCE
    while not (found := question()):
        assert time.monotonic() < until, f"still not so: {what}"
        time.sleep(0.02)
    return found


def wait_until_refused(address):
    """Until nobody listens at the address any more: a server has begun to end."""
    host, port = address.removeprefix("http://").split(":")

    def refused():
        try:
            socket.create_connection((host, int(port)), timeout=60).close()
        except ConnectionError:
            return True
        return False

    wait_for(refused, f"{address} refuses connections")


def read_answer(connection):
    """All that the server sends until it closes the connection."""
    received = b""
    while part := connection.recv(65536):
        received += part
    return received
