"""What makes a student's training harder than its teacher's."""

from dataclasses import replace

import pytest

from vitreous.model.family import named_config
from vitreous.recipes.noise import DROP_PATH, DROPOUT, noised
from vitreous.recipes.situation import Situation
from vitreous.recipes.supervised import recipe

MANY = Situation(classes=5, pictures=40_000, side=32, channels=3)


def test_a_student_of_small_pictures_is_noised_in_all_three_ways():
    plain = recipe("auto", MANY)
    assert (plain.augment.policy, plain.model.dropout, plain.model.drop_path) == ("none", 0, 0)
    student = noised(plain, soft=True)
    assert student.augment.policy == "randaugment"
    assert (student.model.dropout, student.model.drop_path) == (DROPOUT, DROP_PATH)
    assert replace(student, model=plain.model, augment=plain.augment, objective=plain.objective) == plain


def test_soft_labels_are_not_smoothed_as_well():
    plain = recipe("auto", MANY)
    assert plain.objective.label_smoothing == 0.1
    assert noised(plain, soft=True).objective == replace(plain.objective, label_smoothing=0.0)
    assert noised(plain, soft=False).objective == plain.objective


@pytest.mark.parametrize("model", ["efficientnet-b0", "bit-r50x1", "C+P/4@32", "Ti/16"])
def test_a_family_goes_without_what_it_lacks_and_keeps_what_it_has(model):
    plain = recipe("plain", replace(MANY, side=200, model=model))
    student = noised(plain, soft=True)
    for name, least in (("dropout", DROPOUT), ("drop_path", DROP_PATH)):
        if hasattr(named_config(model), name):
            assert getattr(student.model, name) == max(least, getattr(plain.model, name))
    trivial = plain.augment.policy == "trivial"  # as strong as RandAugment
    assert student.augment.policy == ("trivial" if trivial else "randaugment")
