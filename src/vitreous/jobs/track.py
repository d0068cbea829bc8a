"""Curves for TensorBoard, where it is installed: pip install 'vitreous[track]', then tensorboard --logdir RUN."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path

from vitreous.train.loop import Event

Listener = Callable[[Event], None]


@contextmanager
def tracked(listener: Listener, folder: Path) -> Iterator[Listener]:
    """The listener, which now also writes each step's figures to RUN/tensorboard."""
    if find_spec("tensorboard") is None:
        yield listener
        return
    from torch.utils.tensorboard import SummaryWriter

    with ExitStack() as stack:
        writer: SummaryWriter | None = None

        def both(event: Event) -> None:
            nonlocal writer
            if writer is None:  # steps that an interrupted training logged, and that are taken again, are forgotten
                writer = stack.enter_context(SummaryWriter(str(folder / "tensorboard"), purge_step=event.step))
            figures = {f"train/{name}": value for name, value in event.record.items() if name != "step"}
            figures["train/pictures_per_second"] = event.pictures_per_second
            figures |= {f"validation/{name}": value for name, value in (event.evaluation or {}).items()}
            for name, value in figures.items():
                writer.add_scalar(name, value, event.step)
            listener(event)

        yield both
