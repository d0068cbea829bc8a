"""`vitreous serve`: models answer over HTTP."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from vitreous.arguments import checked
from vitreous.config.engine import EngineChoice, Precision
from vitreous.config.server import ServerSettings
from vitreous.errors import UserError
from vitreous.inference.choice import deploy
from vitreous.inference.folder import is_engine
from vitreous.inference.needs import check_inference_memory
from vitreous.inference.opening import open_model
from vitreous.weights.bundle import Bundle
from vitreous.wording import Range

if TYPE_CHECKING:
    from vitreous.server.served import ModelToServe

EXPECTED_IMAGES = 100_000
"""Images that a server is expected to be asked about: it is worth opening, and making, the fastest engine."""
NEEDS = ("fastapi", "uvicorn", "prometheus_client")
LEAST_TOKEN = 16
"""Letters of a token: fewer can be guessed."""
TOKEN = "VITREOUS_TOKEN"
"""The variable that holds the token where none is given: what is on a command line, others on the machine can read."""
SAYS_NOTHING = ("bundle", "model", "pytorch_model")
"""Names that many models have: that of the folder above says more."""


@checked
def serve(
    models: str | Path | Sequence[str | Path],
    *,
    host: str = "127.0.0.1",
    port: Annotated[int, Range(0, 65535)] = 8000,
    token: str | None = None,
    engine: EngineChoice = "auto",
    precision: Precision | None = None,
    ready: Callable[[str, Sequence[str]], None] | None = None,
) -> bool:
    """Answer for models over HTTP until a signal comes; then finish what was accepted.

    Returns whether all that was begun has ended: an explanation that takes very long is not waited for, and goes on in
    its thread. A second Ctrl-C waits for nothing, and is a KeyboardInterrupt.

    models: one or several, each a bundle, a run, an exported model, or anything else that `open_weights` takes. Each
        goes by the name of its folder or file.
    host: the address to listen at; any but this machine's own for itself needs a token.
    port: 0 for any that is free.
    token: what requests must show ("Authorization: Bearer TOKEN"); None for the variable VITREOUS_TOKEN, if it is set.
    engine, precision: what computes, and in what numbers; `vitreous.inference.choice.deploy` says how it is chosen.
    ready: told the address and the models' names once requests are answered.
    """
    if missing := [name for name in NEEDS if find_spec(name) is None]:
        raise UserError(f"serve: {', '.join(missing)} is not installed; pip install 'vitreous[serve]'.")
    _check_no_loop()
    from vitreous.server.running import address_of, listen, run_server

    given = [models] if isinstance(models, str | Path) else models
    if not given:
        raise UserError("no models: give at least one.")
    if token is None:
        token = os.environ.get(TOKEN) or None
    settings = ServerSettings(host, port, None if token is None else token.strip())
    _check_token(settings)
    bundles = [None if is_engine(Path(model)) else open_model(model) for model in given]
    with listen(settings) as bound:  # before any engine is made: that an address is taken shows at once
        opened = _deploy(given, bundles, engine, precision)
        names = [model.name for model in opened]
        return run_server(opened, settings, bound, lambda: ready(address_of(bound), names) if ready else None)


def _check_no_loop() -> None:
    """Refuse where an event loop runs already: a server has its own, and a thread has one at most."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise UserError("serve: an event loop runs here already, as in a notebook; run `vitreous serve` in a terminal.")


def _check_token(settings: ServerSettings) -> None:
    from vitreous.server.guard import is_loopback

    if settings.token is None:
        if settings.host != "localhost" and not is_loopback(settings.host):
            raise UserError(
                f"host={settings.host!r}: other machines may reach this address, so it needs a token; set {TOKEN}, "
                "such as to the output of: openssl rand -hex 32."
            )
    elif len(settings.token) < LEAST_TOKEN or not settings.token.isascii() or not settings.token.isprintable():
        raise UserError(
            f"token: {len(settings.token)} letters; give at least {LEAST_TOKEN}, of plain ASCII, that nobody can guess."
        )


def _deploy(
    given: Sequence[str | Path],
    bundles: Sequence[Bundle | None],
    engine: EngineChoice,
    precision: Precision | None,
) -> list[ModelToServe]:
    """The models with what answers for them; bundles: None for an exported model."""
    from vitreous.server.served import ModelToServe

    opened: list[ModelToServe] = []
    for model, bundle in zip(given, bundles, strict=True):
        deployed = deploy(bundle or model, engine=engine, precision=precision, images=EXPECTED_IMAGES, classifier=False)
        asked = deployed.engine
        check_inference_memory(deployed.config, asked.preprocess, asked.batch_size)
        opened.append(ModelToServe(name_model(model, [one.name for one in opened]), deployed, bundle))
    return opened


def name_model(model: str | Path, taken: Sequence[str] = ()) -> str:
    """What requests call a model: the name of its folder or file, of letters that an address takes.

    A bundle inside a run has the run's name, and its file too. A name that is taken gets a number.
    """
    path = Path(str(model).removeprefix("hf:")) if str(model).startswith("hf:") else Path(model).absolute()
    stem = _stem(path)
    while stem in SAYS_NOTHING and path.parent.name:
        path = path.parent
        stem = _stem(path)
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", stem).strip("-.") or "model"
    number = 1
    while (candidate := name if number == 1 else f"{name}-{number}") in taken:
        number += 1
    return candidate


def _stem(path: Path) -> str:
    """The name without an ending that says what kind of file it is; "v1.2" has none."""
    return path.stem if path.suffix in (".safetensors", ".npz", ".pth", ".pt", ".bin") else path.name
