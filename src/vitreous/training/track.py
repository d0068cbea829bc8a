"""Curves for TensorBoard, where they are wanted; `tensorboard --logdir RUN` shows them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path

from vitreous.callbacks import Event
from vitreous.errors import UserError

StepCallback = Callable[[Event], None]


def check_tensorboard() -> None:
    if find_spec("tensorboard") is None:
        raise UserError("tensorboard: not installed; pip install 'vitreous[track]', or leave it out.")


@contextmanager
def tracked(on_step: StepCallback, folder: Path) -> Iterator[StepCallback]:
    """The on_step, which now also writes each step's metrics to RUN/tensorboard."""
    from torch.utils.tensorboard import SummaryWriter

    with ExitStack() as stack:
        writer: SummaryWriter | None = None

        def both(event: Event) -> None:
            nonlocal writer
            if writer is None:  # steps that an interrupted training logged, and that are taken again, are forgotten
                writer = stack.enter_context(SummaryWriter(str(folder / "tensorboard"), purge_step=event.step))
            metrics = {f"train/{name}": value for name, value in event.record.items() if name != "step"}
            metrics["train/images_per_second"] = event.images_per_second
            metrics |= {f"validation/{name}": value for name, value in (event.evaluation or {}).items()}
            for name, value in metrics.items():
                writer.add_scalar(name, value, event.step)
            on_step(event)

        yield both
