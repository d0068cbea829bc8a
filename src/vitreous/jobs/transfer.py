"""`vitreous transfer`: what a model is worth on many tasks, by the yardsticks of the paper."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from vitreous.arguments import Budget, Pixels, Workers, checked
from vitreous.callbacks import Callbacks
from vitreous.errors import UserError
from vitreous.inference.opening import open_model
from vitreous.report.transferred import Protocol, Transfer
from vitreous.storage.lock import claim_folder
from vitreous.studies.transfer.clock import TransferClock
from vitreous.studies.transfer.folder import PAGE, RESULT, TransferFolder, TransferRequest
from vitreous.studies.transfer.job import TransferJob, at_resolution
from vitreous.studies.transfer.tasks import ALL, OpenTask, name_tasks, open_task
from vitreous.training.context import local_runtime
from vitreous.training.folder import run_name, run_place
from vitreous.training.request import same_place
from vitreous.weights.bundle import weights_digest


@checked
def transfer(
    model: str | Path,
    *,
    tasks: Sequence[str | Path] = (ALL,),
    protocols: Sequence[Protocol] = ("vtab-1k",),
    budget: Budget | None = None,
    image_size: Pixels | None = None,
    preprocess: str | None = None,
    out: str | Path | None = None,
    workers: Workers | None = None,
    device: str = "auto",
    callbacks: Callbacks | None = None,
) -> Transfer:
    """Transfer a model to every task under every protocol, or go on with that; what is done is not done again.

    model: a bundle, a run, or anything else that `open_weights` takes.
    tasks: "natural", "specialized", "structured" or "all" of VTAB, names of the table of datasets, paths of data with
        labels, or NAME=PATH for a row of the table that lies elsewhere. Those of the table that are not on this machine
        are listed as missing.
    protocols: "vtab-1k", fine-tuning on 1,000 images; "full", on all of them; "linear", "knn" and "fewshot-5", on
        frozen features (docs/transfer.md says exactly how).
    budget: how long everything may take, divided fairly; where it is too short for all images, random parts of them
        are taken, and it is said of how many. None: the published settings, whatever they take.
    out: the folder for everything, `transfer.html` and `transfer.json` among it; by default runs/NAME-transfer.
    """
    callbacks = callbacks or Callbacks()
    if not protocols:
        raise UserError("protocols: none given; give some, such as vtab-1k or linear.")
    named = name_tasks(tasks)
    missing = tuple(task.absent() for task in named if not task.on_machine)
    if len(missing) == len(named):
        raise UserError(
            f"tasks: the data of none of them are here: {missing[0].task} is {missing[0].reason} (or set VITREOUS_DATA "
            "to the folder that has it)."
        )
    opened = tuple(open_task(task) for task in named if task.on_machine)
    bundle = open_model(model, preprocess)
    request = TransferRequest(
        same_place(model),
        weights_digest(bundle.model),
        tuple(dict.fromkeys(protocols)),
        budget,
        image_size,
        preprocess,
    )
    folder = _folder(out, model, opened)
    folder.check(request, tuple(one.task for one in opened))
    clock = None if budget is None else TransferClock(budget, callbacks.started)
    machine = local_runtime(workers, device, False)
    resized = at_resolution(bundle, image_size)
    job = TransferJob(request, opened, missing, bundle, resized, folder, machine, callbacks, clock)
    job.check()
    with claim_folder(folder.path, (RESULT, PAGE), callbacks.message):
        folder.begin(request, tuple(one.task for one in opened))
        return job.run()


def _folder(out: str | Path | None, model: str | Path, tasks: Sequence[OpenTask]) -> TransferFolder:
    name = f"{run_name(model)}-transfer"
    for task in tasks:
        run_place(out, task.named.place, name)  # refused where it lies among the images
    return TransferFolder(run_place(out, tasks[0].named.place, name))
