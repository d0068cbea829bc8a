"""One transfer, from what was asked for to the page: the model is opened, what is left is done, all is written."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from vitreous.callbacks import Callbacks
from vitreous.errors import UserError
from vitreous.inference.choice import WORTH_SECONDS, deploy
from vitreous.inference.machine import machine_features
from vitreous.interrupt import Interrupted
from vitreous.model.family import count_flops, count_parameters, describe
from vitreous.report.transfer import transfer_page
from vitreous.report.transferred import Absent, Transfer, TransferredModel
from vitreous.storage.files import write_output
from vitreous.storage.overwrite import GENERATOR
from vitreous.studies.transfer.clock import TransferClock
from vitreous.studies.transfer.finetuning import FineTuning
from vitreous.studies.transfer.folder import PAGE, RESULT, TransferFolder, TransferRequest
from vitreous.studies.transfer.frozen import FROZEN, FrozenFeatures
from vitreous.studies.transfer.tasks import OpenTask
from vitreous.studies.transfer.training import TaskTrainings
from vitreous.studies.transfer.transferring import Transferring, Unit, units_left
from vitreous.training.context import Runtime
from vitreous.training.folder import run_name
from vitreous.weights.adapt import adapt
from vitreous.weights.bundle import Bundle


@dataclass(frozen=True)
class TransferJob:
    """What is measured, and the page over it."""

    request: TransferRequest
    tasks: tuple[OpenTask, ...]
    missing: tuple[Absent, ...]
    given: Bundle
    """The model as it was opened."""
    bundle: Bundle
    """The same at the resolution that was asked for."""
    folder: TransferFolder
    machine: Runtime
    callbacks: Callbacks
    clock: TransferClock | None

    def check(self) -> None:
        """Refuse a budget in which not even the least can be done."""
        units = len(self._units())
        if self.clock is not None and units:
            self.clock.check(units)

    def run(self) -> Transfer:
        """Do what is left to do; what is there by then is written even where it was stopped."""
        complete, absent = False, list[Absent]()
        for one in self.missing:
            self.callbacks.message(f"{one.task}: missing, {one.reason}.")
        try:
            work = self._open_work(absent)
            complete = work.run()
            if complete and not work.scores:
                first = absent[0]
                raise UserError(f"{first.task}, {first.protocol}: {first.reason}.")
        except Interrupted:
            pass
        result = self._result(complete, absent)
        if result.scores or complete:
            written = {"generator": GENERATOR, **result.to_json()}
            write_output(self.folder.path / RESULT, json.dumps(written, allow_nan=False) + "\n")
            write_output(self.folder.path / PAGE, transfer_page(result))
        return result

    def _units(self) -> list[Unit]:
        return units_left(self.tasks, self.request.protocols, self.folder)

    def _open_work(self, absent: list[Absent]) -> Transferring:
        request, looks = self.request, dict[str, float]()
        trainings = TaskTrainings(
            request.model, self.given, request.preprocess, request.image_size, self.machine, self.callbacks
        )
        return Transferring(
            tasks=self.tasks,
            protocols=request.protocols,
            folder=self.folder,
            callbacks=self.callbacks,
            frozen=self._open_frozen(looks),
            tuning=FineTuning(trainings, self.folder, looks),
            clock=self.clock,
            absent=absent,
        )

    def _open_frozen(self, looks: dict[str, float]) -> FrozenFeatures | None:
        """The model, ready to be asked for features; None where no protocol that is left asks for any.

        looks: by task, filled with the seconds for an image.
        """
        every = self._units()
        units = [unit for unit in every if unit.protocols[0] in FROZEN]
        if not units:
            return None
        images = sum(len(source) for unit in units for source in unit.task.data.splits.values())
        hurried = self.clock is not None and self.clock.share(len(every)) * len(units) < 2 * WORTH_SECONDS
        model = deploy(
            self.bundle,
            engine="torch" if hurried else "auto",
            precision="fp32",  # the model itself is judged, not what int8 leaves of it
            device=str(self.machine.device),
            images=images,
            classifier=False,
        )
        return FrozenFeatures(model, self.machine.workers, self.callbacks, looks)

    def _result(self, complete: bool, absent: Sequence[Absent]) -> Transfer:
        request, config = self.request, self.bundle.model.config
        scores = self.folder.scores()  # of earlier commands, too
        measured = {score.task for score in scores}
        tasks = {one.task.name: one.task for one in self.tasks}
        tasks |= {task.name: task for task in self.folder.tasks() if task.name in measured}
        protocols = tuple(dict.fromkeys((*request.protocols, *(score.protocol for score in scores))))
        names = list(tasks)
        return Transfer(
            out=str(self.folder.path),
            finished=complete,
            model=TransferredModel(
                name=run_name(request.model),
                description=describe(config),
                parameters=count_parameters(config),
                image_size=config.image_size,
                forward_flops=count_flops(config),
                digest=request.digest,
                training_flops=training_flops(self.bundle.info),
            ),
            protocols=protocols,
            budget=request.budget,
            image_size=request.image_size,
            preprocess=asdict(self.bundle.preprocess),
            tasks=tuple(tasks.values()),
            scores=tuple(sorted(scores, key=lambda one: (names.index(one.task), protocols.index(one.protocol)))),
            absent=(*self.missing, *absent),
            machine=machine_features(self.machine.device),
            seconds=sum(score.seconds for score in scores),
            remarks=tuple(self.bundle.notes),
        )


def at_resolution(bundle: Bundle, image_size: int | None) -> Bundle:
    """The model for images of this side; as it is if None."""
    if image_size is None:
        return bundle
    network, preprocess = adapt(bundle.model, bundle.preprocess, image_size=image_size)
    return replace(bundle, model=network, preprocess=preprocess)


def training_flops(info: Mapping[str, Any]) -> float | None:
    """What all of a model's training took; None where its bundle does not say it.

    What a bundle says is of its last training alone: of one that started from other weights it is not the whole.
    """
    request, spent = info.get("request"), info.get("spent")
    if not isinstance(spent, dict) or (isinstance(request, dict) and request.get("weights") is not None):
        return None
    return float(spent["flops"]) if spent.get("flops") else None
