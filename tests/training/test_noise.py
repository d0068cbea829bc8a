"""What makes a student's training harder than its teacher's."""

from dataclasses import replace

from vitreous.training.recipes.student import with_noise
from vitreous.training.recipes.supervised import DatasetStats, recipe

MANY = DatasetStats(classes=5, images=40_000, side=32, channels=3)


def test_a_student_of_small_images_is_noised_in_all_three_ways():
    plain = recipe("auto", MANY)
    assert (plain.augment.policy, plain.model.dropout, plain.model.drop_path) == ("none", 0, 0)
    student = with_noise(plain, soft=True)
    assert student.augment.policy == "randaugment"
    assert (student.model.dropout, student.model.drop_path) == (0.1, 0.1)
    assert replace(student, model=plain.model, augment=plain.augment, objective=plain.objective) == plain


def test_soft_labels_are_not_smoothed_as_well():
    plain = recipe("auto", MANY)
    assert plain.objective.label_smoothing == 0.1
    assert with_noise(plain, soft=True).objective == replace(plain.objective, label_smoothing=0.0)
    assert with_noise(plain, soft=False).objective == plain.objective


def test_a_family_goes_without_what_it_lacks_and_keeps_what_it_has(subtests):
    for name, model, dropout, drop_path, policy in (
        ("plain", "efficientnet-b0", 0.5, 0.2, "trivial"),  # the paper's dropout, and stochastic depth of its own
        ("plain", "bit-r50x1", None, None, "trivial"),  # it can do neither
        ("plain", "C+P/4@32", 0.1, 0.1, "randaugment"),
        ("plain", "Ti/16", 0.1, 0.1, "trivial"),
        ("scratch", None, 0.1, 0.1, "trivial"),  # instead of 0.05
    ):
        with subtests.test(name=name, model=model, dropout=dropout, drop_path=drop_path, policy=policy):
            student = with_noise(recipe(name, replace(MANY, side=200, model=model)), soft=True)
            assert getattr(student.model, "dropout", None) == dropout
            assert getattr(student.model, "drop_path", None) == drop_path
            assert student.augment.policy == policy


def test_more_noise_than_that_stays():
    plain = recipe("plain", replace(MANY, model="Ti/16"))
    plain = replace(plain, model=replace(plain.model, dropout=0.3, drop_path=0.4))
    assert with_noise(plain, soft=True).model == plain.model
