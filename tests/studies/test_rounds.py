"""Which round is kept, and what unlabelled data are taken to be."""

from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from vitreous.data.opening import open_unlabelled
from vitreous.distributed.meter import Cost
from vitreous.evaluation.intervals import wilson
from vitreous.studies.requests import SelfTrainRequest
from vitreous.studies.self_train.result import Round, RoundScore, best_round, choice_remarks, round_remarks


def rounds(*accuracies, sizes=(5, 5, 5)):
    scores = [None if share is None else RoundScore(100, share, (0.0, 1.0), 1.0) for share in accuracies]
    return tuple(
        Round(
            k,
            f"round-{k}",
            f"of size {size}",
            size,
            10,
            score,
            RoundScore(100, 1 - k / 10, (0.0, 1.0), 1.0),
            None,
            Cost(),
        )
        for k, (score, size) in enumerate(zip(scores, sizes, strict=True))
    )


def test_validation_chooses_and_test_does_not(subtests):
    for accuracies, best in (
        ((0.5, 0.7, 0.6), 1),
        ((0.7, 0.7, 0.6), 1),
        ((0.7, 0.6, 0.7), 2),
        ((0.9, 0.1, 0.2), 0),
        ((None, None, None), 2),
    ):
        with subtests.test(accuracies=accuracies, best=best):
            assert best_round(rounds(*accuracies)) == best


def test_a_smaller_student_is_told_of():
    assert round_remarks(rounds(0.5, 0.5, 0.5), 2, given=False) == ()
    (said,) = round_remarks(rounds(0.5, 0.5, 0.5, sizes=(5, 7, 6)), 2, given=False)
    assert "round 2" in said
    assert "of size 6 after of size 7" in said


def test_a_given_teacher_that_is_kept_is_remarked_on():
    (said,) = round_remarks(rounds(0.9, 0.5, 0.7), 0, given=True)
    assert said.endswith("round 2.")
    assert round_remarks(rounds(0.5, 0.9, 0.7), 1, given=True) == ()
    assert round_remarks(rounds(0.9, 0.5, 0.7), 0, given=False) == ()


def test_no_two_students_of_two_seeds_draw_alike():
    """Round 2 of seed 0 is not round 1 of seed 1; what follows from (0, 1) stays what it was."""
    asked = {seed: SelfTrainRequest("a", "b", rounds=20, seed=seed) for seed in range(20)}
    seeds = [one.student_round(k, None).seed for one in asked.values() for k in range(1, 21)]
    assert len(set(seeds)) == 400
    assert asked[0].student_round(1, None).seed == asked[0].student_round(1, "1m").seed == 965042564
    assert asked[3].first_round(None).seed == 3


def save(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(path)


def test_a_folder_of_images_at_any_depth(tmp_path):
    """Also where some lie in folders that could be classes, and some beside them."""
    for name in ("a.png", "cats/b.png", "cats/old/c.png", "dogs/d.png"):
        save(tmp_path / name)
    source, _ = open_unlabelled(tmp_path)
    assert [source.key(i) for i in range(4)] == ["a.png", "cats/b.png", "cats/old/c.png", "dogs/d.png"]
    assert (source.labels == -1).all()
    assert source.classes == ()


def test_a_test_split_stays_aside(tmp_path):
    for name in ("train/x/a.png", "train/b.png", "test/c.png"):
        save(tmp_path / name)
    source, notes = open_unlabelled(tmp_path)
    assert sorted(source.key(i) for i in range(len(source))) == ["b.png", "x/a.png"]
    assert notes[-1].startswith(f"{tmp_path}: ")
    assert "1 test" in notes[-1]


def test_packed_data_lose_their_labels(tmp_path):
    images = np.zeros((4, 8, 8, 3), np.uint8)
    np.savez(tmp_path / "x.npz", images=images, labels=np.array([0, 1, 0, 1]))
    source, _ = open_unlabelled(tmp_path / "x.npz")
    assert source.labels.tolist() == [-1] * 4


def test_a_round_that_few_images_chose_is_remarked_on():
    """One of two images right: 95 % interval 9 to 91 %."""
    request = SelfTrainRequest("a", "b")

    def chosen_by(n, *right):
        scores = [RoundScore(n, count / n, wilson(count, n), 1.0) for count in right]
        return tuple(replace(one, validation=score) for one, score in zip(rounds(0, 0, 0), scores, strict=True))

    (said,) = choice_remarks(chosen_by(2, 1, 2, 1), 1, request, 2)
    assert said.startswith("Round 1 ")
    assert "2 validation images" in said
    assert list(choice_remarks(chosen_by(1000, 500, 900, 600), 1, request, 2)) == []
    (said,) = choice_remarks(rounds(None, None, None), 2, request, 2)
    assert "last round" in said


def test_confidence_is_above_chance():
    """30 % of the way from 1/K to 1; what a person gives is taken as it is, and remarked on where it does nothing."""
    for classes, least in ((2, 0.65), (10, 0.37), (1000, 0.3007)):
        assert SelfTrainRequest("a", "b").min_confidence(classes) == pytest.approx(least)
    given = SelfTrainRequest("a", "b", confidence=0.3)
    assert given.min_confidence(2) == 0.3
    (said,) = choice_remarks(rounds(0.9, sizes=(5,)), 0, given, 2)
    assert "confidence=0.3" in said
    assert not list(choice_remarks(rounds(0.9, sizes=(5,)), 0, given, 10))
