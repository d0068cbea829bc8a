"""`vitreous serve`."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass
from importlib.util import find_spec
from itertools import chain, count, zip_longest
from pathlib import Path
from typing import Annotated, ClassVar, NoReturn

from vitreous import cli
from vitreous.arguments import Range
from vitreous.cli.verb import Verb, verb
from vitreous.config.server import ServerSettings
from vitreous.errors import UserError
from vitreous.inputs import reason
from vitreous.interrupt import Interrupted
from vitreous.verbs.options import EngineOption

EXPECTED_IMAGES = 100_000  # so many that converting to the fastest engine pays off
PACKAGES = ("fastapi", "h11", "uvicorn", "prometheus_client")
MIN_TOKEN_LENGTH = 16
TOKEN_VARIABLE = "VITREOUS_TOKEN"  # a command line can be read by other users of the machine
MAX_SAMPLES = 12
SAMPLE_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".gif")  # which every browser shows
COMMON_NAMES = ("bundle", "model", "pytorch_model")  # such a model has the name of its parent folder


@dataclass(frozen=True)
class Serve(EngineOption, Verb[bool]):
    """Serve models over HTTP, with a web page to try them and look inside.

    Ctrl-C ends it, after what was accepted is answered.
    """

    models: str | Path | Sequence[str | Path]
    """MODEL ...: Bundles, run folders, exported models, or anything that `vitreous import` reads. Each goes by the name
    of its folder."""
    _: KW_ONLY
    host: str = "127.0.0.1"
    """ADDRESS: The address to listen at; one that other machines reach needs a token."""
    port: Annotated[int, Range(0, 65535)] = 8000
    """PORT: The port; 0 takes any that is free."""
    token: str | None = None
    """TEXT: What requests must show, as "Authorization: Bearer TEXT". Default: the variable VITREOUS_TOKEN, if it is
    set."""
    allow_origin: Sequence[str] | None = None
    """ORIGIN,...: Web pages elsewhere that may send requests, such as https://photos.example; * for all, which needs a
    token."""
    samples: str | Path | None = None
    """FOLDER: Images that the page offers to try, such as the model's validation images, instead of the package's own:
    up to 12, in turn from each subfolder. Whoever may use the page sees them."""
    ready: Callable[[str, Sequence[str]], None] | None = None
    """Called with the address and the models' names when requests are answered."""
    json_help: ClassVar[str] = ""

    def run(self) -> bool:
        """Serve until a signal comes, then finish the accepted requests; whether all have finished. A very long
        explanation is not waited for and goes on in its thread. A second Ctrl-C raises KeyboardInterrupt at once."""
        if missing := [name for name in PACKAGES if find_spec(name) is None]:
            raise UserError(f"serve: {', '.join(missing)} is not installed; pip install 'vitreous[serve]'.")
        with suppress(RuntimeError):  # a server has an event loop of its own, and a thread one at most
            asyncio.get_running_loop()
            raise UserError("serve: an event loop runs here, as in a notebook; run `vitreous serve` in a terminal.")
        from vitreous.distributed.world import find_device
        from vitreous.inference.engine_folder import is_engine
        from vitreous.inference.memory_needs import check_inference_memory
        from vitreous.inference.opening import open_engine, open_model
        from vitreous.server.running import Server, address_of, listen
        from vitreous.server.served_model import ModelToServe
        from vitreous.weights.published import hub_name

        message = self.active_callbacks.message
        models = [self.models] if isinstance(self.models, str | Path) else self.models
        if not models:
            raise UserError("no models: give at least one.")
        token = os.environ.get(TOKEN_VARIABLE) or None if self.token is None else self.token
        settings = ServerSettings(
            self.host,
            self.port,
            None if token is None else token.strip(),
            tuple(self.allow_origin or ()),
            () if self.samples is None else read_samples(Path(self.samples), message),
        )
        _check_token(settings)
        _check_origins(settings)
        device, names = find_device(self.device), list[str]()
        for model in models:
            names.append(name_model(model, names))
            if hub_name(model) is None and not os.path.exists(model):  # noqa: PTH110  # of any text
                open_model(model)  # refuses it, before anything is said or listens

        def ready() -> None:
            message(f"vitreous: {', '.join(names)} at {address} (Ctrl-C ends it)")
            if self.ready is not None:
                self.ready(address, names)

        def waiting(seconds: float) -> None:
            message(f"vitreous: still loading, {seconds:.0f} s so far")

        def open_all() -> Iterator[ModelToServe]:
            for name, model in zip(names, models, strict=True):
                bundle = None if is_engine(Path(model)) else open_model(model)
                deployed = open_engine(
                    bundle or model,
                    engine=self.engine,
                    precision=self.precision,
                    device=self.device,
                    images=EXPECTED_IMAGES,
                    classifier=False,
                )
                engine = deployed.engine
                check_inference_memory(deployed.config, engine.preprocess, engine.batch_size)
                if bundle is not None:
                    bundle.model.to(device)  # explanations are computed there, whatever the engine
                yield ModelToServe(name, deployed, bundle)

        with listen(settings) as bound:  # first, so that an address in use is an error at once
            address = address_of(bound)
            message(f"vitreous: loading {', '.join(names)}; {address} says so until they answer")
            try:
                return Server(open_all(), settings, ready, waiting).serve_until_signal(bound)
            except Interrupted as again:
                if cli.owns_process:
                    _end_process(128 + again.number)
                raise

    def show(self, result: bool) -> None:
        """Nothing: `run` prints the address."""

    def status(self, result: bool) -> int:
        """0; this ends a process of the command line while a thread still computes."""
        if not result and cli.owns_process:
            _end_process(0)
        return 0


def _end_process(status: int) -> NoReturn:
    """End without waiting for threads that compute, as Python would."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _check_token(settings: ServerSettings) -> None:
    from vitreous.server.guard import is_loopback

    token = settings.token
    if token is None:
        if settings.host != "localhost" and not is_loopback(settings.host):
            raise UserError(
                f"host={settings.host!r}: other machines may reach this address, so it needs a token; set "
                f"{TOKEN_VARIABLE}, such as to the output of: openssl rand -hex 32."
            )
    elif len(token) < MIN_TOKEN_LENGTH or not token.isascii() or not token.isprintable():
        raise UserError(
            f"token: {len(token)} characters; give at least {MIN_TOKEN_LENGTH}, of printable ASCII, that nobody can "
            "guess."
        )


def _check_origins(settings: ServerSettings) -> None:
    for origin in settings.allowed_origins:
        if origin == "*":
            if settings.token is None:
                raise UserError(f"allow_origin='*': every web page could ask; set {TOKEN_VARIABLE}, or name the pages.")
        elif not re.fullmatch(r"https?://[^/?#\s@]+", origin) or origin != origin.lower():
            raise UserError(
                f"allow_origin={origin!r}: give the address of a site as browsers do, in small letters and without a "
                "path, such as https://photos.example or http://localhost:3000."
            )


def read_samples(folder: Path, message: Callable[[str], None]) -> tuple[tuple[str, bytes], ...]:
    """Path in the folder and content of up to `MAX_SAMPLES` images that browsers show, in turn from each folder at or
    below this one. Those that cannot be read are left out, with one message."""
    from vitreous.data.decode import ImageError, open_image

    if not folder.is_dir():
        raise UserError(f"samples={str(folder)!r}: there is no such folder; give one with images.")
    by_folder: dict[Path, list[Path]] = {}
    for path in sorted(folder.rglob("*")):
        if path.suffix.lower() in SAMPLE_SUFFIXES and path.is_file():
            by_folder.setdefault(path.parent, []).append(path)
    samples, failures = list[tuple[str, bytes]](), list[str]()
    for path in filter(None, chain.from_iterable(zip_longest(*by_folder.values()))):
        try:
            content = path.read_bytes()
            open_image(content, name=str(path))
        except ImageError as error:
            failures.append(str(error))
        except OSError as error:
            failures.append(f"{path}: {reason(error)}.")
        else:
            samples.append((path.relative_to(folder).as_posix(), content))
        if len(samples) == MAX_SAMPLES:
            break
    if failures and not samples:
        raise UserError(f"samples={str(folder)!r}: none of its images can be read; the first is {failures[0]}")
    if not samples:
        raise UserError(f"samples={str(folder)!r}: it has no {', '.join(SAMPLE_SUFFIXES)} images.")
    if failures:
        message(f"vitreous: samples: images that cannot be read are left out: {len(failures)}, first {failures[0]}")
    return tuple(samples)


def name_model(model: str | Path, taken: Sequence[str] = ()) -> str:
    """The name of a model in requests: that of its folder or file, in characters for a URL. A run's bundle has the
    run's name. A name in `taken` gets a number."""
    path = Path(str(model).removeprefix("hf:")) if str(model).startswith("hf:") else Path(model).absolute()
    while (stem := re.sub(r"\.(safetensors|npz|pth|pt|bin)$", "", path.name)) in COMMON_NAMES and path.parent.name:
        path = path.parent
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", stem).strip("-.") or "model"
    candidates = (name if number == 1 else f"{name}-{number}" for number in count(1))
    return next(candidate for candidate in candidates if candidate not in taken)


serve = verb(Serve)
