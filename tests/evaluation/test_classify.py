"""Figures of merit, against scikit-learn, statistics' tables, and arithmetic by hand."""

import json

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, confusion_matrix, log_loss, top_k_accuracy_score

from vitreous import UserError
from vitreous.evaluation.calibration import expected_calibration_error, fit_temperature
from vitreous.evaluation.classify import ClassificationResult, score_classes
from vitreous.evaluation.intervals import wilson


def random_scores(n=300, classes=8, seed=0):
    draw = torch.Generator().manual_seed(seed)
    targets = torch.randint(classes, (n,), generator=draw)
    scores = torch.randn(n, classes, generator=draw) + 1.5 * torch.eye(classes)[targets]
    return scores, targets


def test_against_scikit_learn():
    scores, targets = random_scores()
    found = score_classes(scores, targets)
    chance = scores.double().softmax(1).numpy()
    every = np.arange(8)
    assert found.n == 300
    assert found.top1 == pytest.approx(accuracy_score(targets, scores.argmax(1)))
    assert found.top5 == pytest.approx(top_k_accuracy_score(targets, chance, k=5, labels=every))
    assert found.loss == pytest.approx(log_loss(targets, chance, labels=every))
    assert np.array_equal(found.confusion_matrix(), confusion_matrix(targets, scores.argmax(1), labels=every))


def test_probabilities_say_the_same_as_their_logits():
    scores, targets = random_scores()
    chance = scores.double().softmax(1)
    one, other = score_classes(scores, targets), score_classes(chance, targets, probabilities=True)
    assert one.confusion == other.confusion
    assert (one.ece, one.loss) == pytest.approx((other.ece, other.loss))


def test_calibration_error_by_hand():
    """Two of 15 bins: 0.95 confident and right in 1 of 2, 0.4 confident and right in 2 of 2."""
    confidence = torch.tensor([0.94, 0.96, 0.4, 0.4], dtype=torch.float64)
    right = torch.tensor([True, False, True, True])
    assert expected_calibration_error(confidence, right) == pytest.approx(0.5 * abs(0.5 - 0.95) + 0.5 * abs(1 - 0.4))


def test_bins_sum_up_to_the_calibration_error():
    scores, targets = random_scores(n=500, seed=3)
    found = score_classes(scores, targets)
    confidence = scores.double().softmax(1).max(1).values.numpy()
    counts, _ = np.histogram(confidence, bins=15, range=(0, 1))
    assert [one.images for one in found.bins] == counts.tolist()
    gaps = [one.images * abs(one.accuracy - one.confidence) for one in found.bins if one.images]
    assert found.ece == pytest.approx(sum(gaps) / 500)
    assert {one.accuracy for one in found.bins if not one.images} == {None}


def test_the_surest_answers_by_hand():
    chance = torch.tensor([[0.9, 0.1], [0.2, 0.8], [0.3, 0.7], [0.99, 0.01], [0.05, 0.95], [0.6, 0.4]])
    found = score_classes(
        chance, torch.tensor([0, 0, 1, 0, 1, 1]), ["cat", "dog"], names=list("abcdef"), probabilities=True
    )
    wrong = [(one.image, one.true, one.predicted, round(one.confidence, 3)) for one in found.surest_wrong]
    assert wrong == [("b", "cat", "dog", 0.8), ("f", "dog", "cat", 0.6)]
    assert [one.image for one in found.surest_right] == ["d", "e"]  # one per class, though "a" was right and sure too
    unnamed = score_classes(chance, torch.tensor([0, 0, 1, 0, 1, 1]), probabilities=True)
    assert unnamed.surest_wrong[0].image == "1"


def test_calibration_error_as_the_paper_writes_it():
    scores, targets = random_scores(n=500, seed=3)
    confidence, predicted = scores.double().softmax(1).max(1)
    right = (predicted == targets).numpy()
    confidence = confidence.numpy()
    expected = 0.0
    for low, high in zip(np.linspace(0, 1, 16)[:-1], np.linspace(0, 1, 16)[1:], strict=True):
        inside = (confidence > low) & (confidence <= high)
        if inside.any():
            expected += inside.mean() * abs(right[inside].mean() - confidence[inside].mean())
    assert score_classes(scores, targets).ece == pytest.approx(expected)


def test_a_certain_and_right_model_is_perfect():
    targets = torch.arange(6)
    found = score_classes(torch.eye(6) * 1e4, targets)
    assert (found.top1, found.top5, found.ece, found.loss) == (1.0, 1.0, 0.0, 0.0)
    assert found.most_confused() == []


def test_equal_scores_are_no_merit():
    """A model that says nothing is right by chance only, in the first five too."""
    targets = torch.arange(10).repeat(3)
    found = score_classes(torch.zeros(30, 10), targets)
    assert (found.top1, found.top5) == (0.1, 0.5)


def test_fewer_than_five_classes():
    scores, targets = random_scores(classes=3)
    assert score_classes(scores, targets).top5 == 1.0


def test_classes_and_confused_pairs():
    #                    true: a a a b b c;  said: a b b b a c
    targets = torch.tensor([0, 0, 0, 1, 1, 2])
    said = torch.tensor([0, 1, 1, 1, 0, 2])
    found = score_classes(torch.eye(4)[said], targets, ["a", "b", "c", "d"])
    assert found.per_class == {
        "a": {"n": 3, "accuracy": pytest.approx(1 / 3)},
        "b": {"n": 2, "accuracy": 0.5},
        "c": {"n": 1, "accuracy": 1.0},
        "d": {"n": 0, "accuracy": None},
    }
    assert found.most_confused() == [("a", "b", 2, pytest.approx(2 / 3)), ("b", "a", 1, 0.5)]
    assert found.most_confused(1) == [("a", "b", 2, pytest.approx(2 / 3))]


def test_two_classes_of_one_name_stay_two():
    found = score_classes(torch.eye(3), torch.arange(3), ["crane", "cat", "crane"])
    assert list(found.per_class) == ["crane (0)", "cat", "crane (2)"]


def test_it_is_plain_json():
    scores, targets = random_scores()
    said = json.loads(json.dumps(score_classes(scores, targets).to_json()))
    assert {"n", "top1", "top1_interval", "top5", "ece", "per_class", "confusion", "most_confused"} <= set(said)
    assert said["most_confused"][0].keys() == {"true", "predicted", "images", "share"}


def test_wilson_as_published(subtests):
    """The last one is the example of Newcombe 1998, method 3."""
    for right, count, low, high in [
        (0, 10, 0.0, 0.2775),
        (10, 10, 0.7225, 1.0),
        (5, 10, 0.2366, 0.7634),
        (81, 263, 0.2553, 0.3662),
    ]:
        with subtests.test(right=right, count=count, low=low, high=high):
            assert wilson(right, count) == pytest.approx((low, high), abs=5e-5)


def test_nothing_and_nonsense_are_refused():
    with pytest.raises(UserError):
        score_classes(torch.zeros(0, 3), torch.zeros(0, dtype=torch.long))
    with pytest.raises(UserError):
        score_classes(torch.tensor([[float("nan"), 1.0]]), torch.tensor([0]))


@pytest.mark.parametrize("n", [1, 300])
def test_a_result_is_the_same_after_json(n):
    scores, targets = random_scores(n)
    result = score_classes(scores, targets, list("abcdefgh"), names=[f"image {i}" for i in range(n)])
    again = ClassificationResult.from_json(json.loads(json.dumps(result.to_json())))
    assert again == result
    assert again.most_confused() == result.most_confused()
    assert again.per_class == result.per_class


def test_a_result_with_a_full_confusion_matrix_is_read_too():
    """As results were written before 2026-11-18."""
    result = score_classes(*random_scores(), list("abcdefgh"))
    fields = json.loads(json.dumps({**result.to_json(), "confusion": result.confusion_matrix()}))
    assert ClassificationResult.from_json(fields) == result


def test_few_images_of_many_classes_need_little_room():
    """Only the pairs that occur are kept, not all of 3,000 x 3,000."""
    scores, targets = random_scores(n=50, classes=3000)
    result = score_classes(scores, targets)
    assert len(result.confusion) <= 50
    text = json.dumps(result.to_json())
    assert len(text) < 300_000
    assert ClassificationResult.from_json(json.loads(text)) == result


def test_accuracy_is_set_beside_that_of_the_most_frequent_class():
    """Of 20 images 11 are of class a. Wilson's interval of 15 right of 20 begins at 53.1 %, of 17 of 20 at 64.0 %."""
    targets = torch.tensor([0] * 11 + [1] * 9)
    for wrong, guessing in ((5, True), (3, False), (9, True)):
        predicted = targets.clone()
        predicted[-wrong:] = 0
        found = score_classes(torch.eye(2)[predicted], targets, ["a", "b"])
        assert found.majority == ("a", 0.55)
        assert found.is_guessing == guessing
        assert found.to_json()["majority_class"] == {"label": "a", "accuracy": 0.55, "beaten": not guessing}
    one_class = score_classes(torch.eye(2)[[0, 0]], torch.tensor([0, 0]), ["a", "b"])
    assert not one_class.is_guessing  # nothing was there to tell apart


def test_many_logits_are_taken_by_parts_with_the_same_result(monkeypatch):
    scores, targets = random_scores()
    whole, temperature = score_classes(scores, targets), fit_temperature(scores, targets)
    monkeypatch.setattr("vitreous.evaluation.classify.CHUNK_LOGITS", 56)
    monkeypatch.setattr("vitreous.evaluation.calibration.CHUNK_LOGITS", 56)
    assert score_classes(scores, targets) == whole
    assert fit_temperature(scores, targets) == pytest.approx(temperature, rel=1e-3)
