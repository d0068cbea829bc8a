"""`vitreous serve`."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Annotated, NoReturn

import tyro

from vitreous import cli
from vitreous.cli.engines import EngineOption, PrecisionOption
from vitreous.cli.terminal import option, printable
from vitreous.interrupt import Interrupted
from vitreous.wording import Range


def serve(
    models: Annotated[tuple[str, ...], tyro.conf.Positional, option("MODEL ...")],
    host: Annotated[str, option("ADDRESS")] = "127.0.0.1",
    port: Annotated[Annotated[int, Range(0, 65535)], option("PORT")] = 8000,
    token: Annotated[str | None, option("TEXT")] = None,
    engine: EngineOption = "auto",
    precision: PrecisionOption = None,
) -> None:
    """Answer for models over HTTP, and show a page to look through them.

    Ctrl-C ends it, after what was accepted is answered.

    Args:
        models: Bundles, run folders, exported models, or anything that `vitreous import` reads. Each goes by the name
            of its folder.
        host: The address to listen at; one that other machines reach needs a token.
        port: The port; 0 takes any that is free.
        token: What requests must show, as "Authorization: Bearer TEXT". Default: the variable VITREOUS_TOKEN.
        engine: What computes. auto takes the fastest that was verified for each model here, and says which.
        precision: fp32 or int8. Default: of engine auto, whatever is fastest; else fp32.
    """
    from vitreous.jobs.serve import serve as answer

    try:
        ended = answer(models, host=host, port=port, token=token, engine=engine, precision=precision, ready=_say)
    except Interrupted as again:
        if not cli.whole_process:
            raise
        _end(128 + again.number)
    if not ended and cli.whole_process:
        _end(0)


def _end(status: int) -> NoReturn:
    """End the process now: Python would wait for a thread that computes, such as an explanation's, for as long as it
    takes.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _say(address: str, names: Sequence[str]) -> None:
    print(f"vitreous: {printable(', '.join(names))} at {address} (Ctrl-C ends it)", file=sys.stderr, flush=True)
