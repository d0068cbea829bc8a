"""Noisy Student (Xie et al. 2020): a teacher, then students that learn from its labels and become the next teachers.

OUT/config.json     what was asked for, and what the data were
OUT/round-0, ...    each round a run folder of its own
OUT/labels/round-1  what the teacher of this round said; labels/final: what the kept model says
OUT/bundle          the kept round's, so that OUT is a model like any run folder
OUT/report.html, OUT/result.json

What a round has finished stays, so the same command again goes on with the next.
"""

from __future__ import annotations

import json
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from vitreous.callbacks import Callbacks
from vitreous.data.copies import note_copies, without_copies
from vitreous.data.source import Data, Source
from vitreous.distributed.meter import Cost, Meter
from vitreous.errors import UserError
from vitreous.evaluate.classify import score_classes
from vitreous.evaluate.paired import Paired
from vitreous.inference.needs import check_training_memory
from vitreous.inference.opening import open_classifier, open_dataset, open_unlabelled
from vitreous.report.rounds import Round
from vitreous.storage.files import write_file
from vitreous.storage.lock import hold_folder
from vitreous.storage.overwrite import check_folder
from vitreous.studies.self_training.folder import (
    SelfTrainConfig,
    SelfTrainResult,
    copy_bundle,
    make_folder,
    open_self_training,
    read_self_training,
)
from vitreous.studies.self_training.labelling import Labelling, ask_teacher, label_images, read_labels, write_labels
from vitreous.studies.self_training.page import write_rounds_page
from vitreous.studies.self_training.request import SelfTrainRequest
from vitreous.studies.self_training.rounds import (
    best_round,
    compare_rounds,
    given_teacher_kept,
    smaller_students,
    tell_round,
)
from vitreous.studies.self_training.student import PseudoLabels, train_first_teacher, train_student
from vitreous.training.context import Runtime
from vitreous.training.deadline import parse_budget
from vitreous.training.folder import REPORT, RESULT, digest_splits, read_config, source_digest
from vitreous.training.request import FitRequest
from vitreous.training.result import FitResult, read_result
from vitreous.training.start import choose_training, split_for
from vitreous.training.teaching.teacher import open_teacher, teacher_of
from vitreous.weights.bundle import Bundle, save_bundle
from vitreous.weights.source import open_weights

CLOSING = 0.1
"""The share of a budget that is kept for the last labels and the page."""
WRITING = 3.0
"""Seconds of it that the page takes."""
PAIRING = 0.3
"""The share of what is left after the rounds in which the kept student is set beside the first teacher."""
LEAST = 1.0
"""Seconds that a round is given however late it is."""


@dataclass(frozen=True)
class Images:
    """What is learned from."""

    labelled: Data
    """Divided as all rounds have it: with its val split, and of the training images the share that is learned."""
    unlabelled: Source
    copies: int
    """Unlabelled images that were left out, as they are among the labelled ones."""
    notes: tuple[str, ...]


class SelfTraining:
    """All rounds in one folder; `run` does what is left of them."""

    def __init__(
        self,
        request: SelfTrainRequest,
        folder: Path,
        machine: Runtime,
        callbacks: Callbacks,
    ) -> None:
        self.request, self.folder, self.machine = request, folder, machine
        # a round's time counts from its own beginning: start-up is part of the whole
        self.callbacks = replace(callbacks, started=None)
        self.meter = Meter(began=callbacks.started)
        self.seconds = None if request.budget is None else parse_budget(request.budget)
        self.earlier = 0.0  # seconds that rounds took which an earlier process finished
        self.images: Images

    def run(self) -> SelfTrainResult:
        """Do what is left to do."""
        saved = open_self_training(self.folder)
        if saved is not None:
            saved.check_request(self.request, self.folder)
        finished = (self.folder / RESULT).exists()
        if finished and (self.folder / REPORT).exists():
            self.callbacks.message(f"{self.folder} is finished; nothing to do.")
            return read_self_training(self.folder)
        self.images = self._open_images()
        labelled = digest_splits(self.images.labelled)
        config = SelfTrainConfig(self.request, source_digest(self.images.unlabelled), labelled)
        if saved is not None:
            saved.check_images(config, self.folder)
        with ExitStack() as held:
            if saved is None:
                self._check_request()
            check_folder(self.folder / "bundle")
            make_folder(self.folder)
            held.enter_context(hold_folder(self.folder, self.callbacks.message))
            if open_self_training(self.folder) != saved:
                raise UserError(f"{self.folder}: another process has just trained in it; repeat the command.")
            if saved is None:
                config.write(self.folder)
            return self._rounds()

    # What is learned from

    def _open_images(self) -> Images:
        whole = note_copies(open_dataset(self.request.labelled))
        unlabelled, notes = open_unlabelled(self.request.unlabelled)
        notes = (*whole.notes, *notes)
        others = without_copies(unlabelled, list(whole.splits.values()))
        if not len(others):
            raise UserError(
                f"{self.request.unlabelled}: all {len(unlabelled):,} images are among the labelled ones "
                f"({self.request.labelled}), so there is nothing to label; give other images."
            )
        copies = len(unlabelled) - len(others)
        if copies:
            notes = (*notes, f"{copies:,} of {self.request.unlabelled}'s images are labelled ones, and left out.")
        training = choose_training(self.request.dividing(), whole, self._base(), self.machine.device.type)
        return Images(replace(split_for(training, whole), notes=()), others, copies, notes)

    def _base(self) -> Bundle | None:
        return None if self.request.weights is None else open_weights(self.request.weights, self.request.preprocess)

    def _check_request(self) -> None:
        """Refuse what no round could do, before anything is written."""
        data, base, budget = self.images.labelled, self._base(), self.request.budget
        asked: list[FitRequest] = [self.request.student_round(1, budget)]
        if self.request.teacher is not None:
            open_teacher(self.request.teacher, data.classes)
        else:
            asked.append(self.request.first_round(budget))
        for request in asked:
            training = choose_training(request, data, base, self.machine.device.type, is_split=True)
            check_training_memory(training, len(data.train), self.machine.world)

    # The rounds

    def _rounds(self) -> SelfTrainResult:
        for note in self.images.notes:
            self.callbacks.message(note)
        self.earlier = sum(self._fitted(k).spent.seconds for k in range(self.request.rounds + 1) if self._measured(k))
        done = [self._first_round()]
        while done[-1].finished and len(done) <= self.request.rounds:
            done.append(self._student_round(len(done)))
        rounds = tuple(
            tell_round(number, self._round(number), result, self.request, self._labels(number), self._earlier(number))
            for number, result in enumerate(done)
        )
        best = best_round(rounds)
        if not done[-1].finished:
            return self._result(rounds, best, finished=False)
        compared = self._compared(best)
        earlier = None if compared is None else read_labels(self._labels(compared))
        paired = self._against_teacher(best)
        final = self._final_labels(best, earlier)
        copy_bundle(self._round(best) / "bundle", self.folder / "bundle")
        changed = len(final.changed(earlier))
        result = self._result(rounds, best, finished=True, changed=changed, paired=paired)
        others = self.images.unlabelled
        write_rounds_page(self.folder / REPORT, self.request, result, others, final, earlier, compared)
        result.write(self.folder)
        return result

    def _round(self, number: int) -> Path:
        return self.folder / f"round-{number}"

    def _labels(self, number: int) -> Path:
        return self.folder / "labels" / f"round-{number}"

    def _earlier(self, number: int) -> Path | None:
        """The folder of the labels of the round before; the first two rounds have none."""
        return self._labels(number - 1) if number > 1 else None

    def _measured(self, number: int) -> bool:
        return (self._round(number) / RESULT).exists()

    def _is_done(self, number: int) -> bool:
        """Whether nothing is left of a round; a run whose page is lost writes it again."""
        given = number == 0 and self.request.teacher is not None
        return self._measured(number) and (given or (self._round(number) / REPORT).exists())

    def _fitted(self, number: int) -> FitResult:
        found = read_result(self._round(number))
        assert isinstance(found, FitResult)  # as its request is
        return found

    def _first_round(self) -> FitResult:
        """The first teacher: what `fit` makes of the labelled images, or the one that was given."""
        if self._is_done(0):
            return self._fitted(0)
        if self.request.teacher is not None:
            return self._given_teacher(str(self.request.teacher))
        self.callbacks.message(f"Round 0 of {self.request.rounds}: the teacher learns from the labelled images.")
        request = self.request.first_round(self._budget(0))
        return train_first_teacher(request, self._round(0), self.machine, self.callbacks, self.images.labelled)

    def _given_teacher(self, place: str) -> FitResult:
        """The given teacher as round 0: copied, so that nothing depends on it any more, and measured."""
        meter, data, folder = Meter(), self.images.labelled, self._round(0)
        bundle = open_classifier(place)
        teacher = teacher_of(bundle, data.classes, place, self.machine.device)
        measured = {
            split: score_classes(*ask_teacher(teacher, data.splits[split], self.machine.workers), data.classes)
            for split in ("val", "test")
            if split in data.splits
        }
        save_bundle(folder / "bundle", bundle.model.cpu(), bundle.preprocess, bundle.labels, info=bundle.info)
        result = FitResult(
            run=str(folder),
            bundle=str(folder / "bundle"),
            finished=True,
            classes=data.classes,
            images=0,
            steps=0,
            best_step=0,
            validation=measured.get("val"),
            test=measured.get("test"),
            metrics={},
            probe=None,
            spent=meter.spent(),
        )
        write_file(folder / RESULT, json.dumps(result.to_json(), indent=2) + "\n")
        return result

    def _student_round(self, number: int) -> FitResult:
        if self._is_done(number):
            return self._fitted(number)
        self.callbacks.message(f"Round {number} of {self.request.rounds}: a noised student.")
        lesson = PseudoLabels(
            labelled=self.images.labelled,
            unlabelled=self.images.unlabelled,
            teacher=self._round(number - 1),
            labels=self._labels(number),
            earlier=self._earlier(number),
            confidence=self.request.confidence,
            each=self.request.per_class,
        )
        request = self.request.student_round(number, self._budget(number))
        return train_student(request, self._round(number), self.machine, self.callbacks, lesson)

    def _budget(self, number: int) -> str | None:
        """A round's time: what it was when the round began, else its share of what is left."""
        if self.seconds is None:
            return None
        if (saved := read_config(self._round(number))) is not None:
            return saved.request.budget
        rounds = self.request.rounds + 1 - number
        left = (1 - CLOSING) * self.seconds - self.earlier - self.meter.seconds
        return f"{max(LEAST, left / rounds):.1f}s"

    # What it came to

    def _compared(self, best: int) -> int | None:
        """The round whose labels are set beside the final ones: the kept student's own, or another teacher's last."""
        return best or (self.request.rounds if self.request.rounds > 1 else None)

    def _against_teacher(self, best: int) -> Paired | None:
        """The kept student beside the first teacher; None where that is the kept one."""
        if (self.folder / RESULT).exists():  # only the page is lost
            return read_self_training(self.folder).against_teacher
        if best == 0:
            return None
        left = None if self.seconds is None else self.seconds - self.earlier - WRITING - self.meter.seconds
        seconds = None if left is None else max(0.0, PAIRING * left)
        folders = self._round(0), self._round(best)
        return compare_rounds(folders, self.images.labelled, self.machine, self.request.seed, seconds)

    def _final_labels(self, best: int, earlier: Labelling | None) -> Labelling:
        """What the kept model says of the unlabelled images."""
        place = self.folder / "labels" / "final"
        if (kept := read_labels(place)) is not None:
            return kept
        data = self.images.labelled
        teacher = open_teacher(self._round(best), data.classes, self.machine.device)
        end = None if self.seconds is None else max(self.seconds - self.earlier - WRITING, self.meter.seconds + 1)
        final = label_images(
            teacher,
            self.images.unlabelled,
            data.splits.get("val"),
            seed=self.request.seed,
            workers=self.machine.workers,
            late=lambda: end is not None and self.meter.seconds > end,
        )
        write_labels(place, final, self.images.unlabelled, data.classes, earlier=earlier)
        return final

    def _result(
        self,
        rounds: tuple[Round, ...],
        best: int,
        *,
        finished: bool,
        changed: int = 0,
        paired: Paired | None = None,
    ) -> SelfTrainResult:
        data = self.images.labelled
        kept = given_teacher_kept(rounds, best) if self.request.teacher is not None and finished else ()
        return SelfTrainResult(
            run=str(self.folder),
            bundle=str(self.folder / "bundle"),
            finished=finished,
            classes=data.classes,
            labelled=len(data.train),
            unlabelled=len(self.images.unlabelled),
            copies=self.images.copies,
            rounds=rounds,
            best=best,
            changed=changed,
            spent=sum((one.spent for one in rounds), Cost()),
            against_teacher=paired,
            remarks=(*self.images.notes, *kept, *smaller_students(rounds)),
        )
