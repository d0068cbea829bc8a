"""Which weights a training starts from where the person names none."""

from __future__ import annotations

from collections.abc import Callable

from vitreous.config.model import preset
from vitreous.errors import UserError
from vitreous.model.family import count_flops
from vitreous.training.start import ACCELERATOR_HOUR_FLOPS, CPU_HOUR_FLOPS
from vitreous.weights import hub
from vitreous.weights.bundle import Bundle
from vitreous.weights.published import WEIGHTS, hub_name
from vitreous.weights.source import open_weights

RECOMMENDED = {"b16": "B/16", "s16": "S/16", "ti16": "Ti/16"}
"""Names of published weights and their presets, the most accurate first: AugReg's, made to be fine-tuned on small data
(Steiner et al. 2021)."""
MEGABYTES_PER_SECOND = 5.0  # of a download, as is assumed
MAX_DOWNLOADING = 0.2  # the fraction of a budget that a download may take
UNHURRIED_SECONDS = 60.0  # what is planned for where there is no budget


def choose_weights(images: int, seconds: float | None, device: str) -> str:
    """The name of the largest recommended model that can pass once through all images, at the speed of a training,
    within the budget. So the classifier on frozen features takes about a third of it, and steps the rest."""
    hour = CPU_HOUR_FLOPS if device == "cpu" else ACCELERATOR_HOUR_FLOPS
    affordable = (UNHURRIED_SECONDS if seconds is None else seconds) / 3600 * hour
    for name, size in RECOMMENDED.items():
        here = seconds is None or hub.is_cached(hub_name(name) or name)
        quick = here or WEIGHTS[name].megabytes / MEGABYTES_PER_SECOND <= MAX_DOWNLOADING * (seconds or 0.0)
        if quick and images * count_flops(preset(size)) <= affordable:
            return name
    return next(reversed(RECOMMENDED))


def open_chosen(name: str, message: Callable[[str], None]) -> Bundle | None:
    """These weights, downloaded if they are not on this machine; None, with a message, where they cannot be."""
    one = WEIGHTS[name]
    source = hub_name(name) or name  # a file or folder of this name comes first
    here = hub.is_cached(source)
    message(
        f"Starting from the weights {name!r}: {one.model}, {'in the cache' if here else 'a download'} of "
        f"{one.megabytes:,.0f} MB, licence {one.licence}, trained on {one.data} (--weights none: from scratch)."
    )
    try:
        return open_weights(source)
    except hub.HubUnreachableError:
        message(
            "They are not on this machine, and there is no network: training from scratch, which with few photographs "
            "is far less accurate (37 breeds of pets in five minutes: 7 % instead of 90 %). Once online, "
            f"`vitreous import {name} {name}/` gets them."
        )
        return None
    except UserError as error:
        raise UserError(f"{str(error).rstrip('.')}; or train from scratch: --weights none.") from None
