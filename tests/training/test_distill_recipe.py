"""What a teacher changes in a recipe's training: the token, and how often the teacher looks."""

from dataclasses import replace

import pytest

from vitreous import UserError, ViTConfig
from vitreous.config.objective import Distill, Mae, Supervised
from vitreous.config.overrides import override
from vitreous.model.family import count_flops, named_config
from vitreous.training.recipes.student import choose_teacher_targets, with_distillation
from vitreous.training.recipes.supervised import RECIPES, DatasetStats, recipe

TINY = ViTConfig(width=16, depth=1, heads=2, mlp_width=32, patch=4, image_size=(16, 16), classes=3)
SITUATION = DatasetStats(3, 100, 100, 3)


def fresh(name, stats=SITUATION, teacher=TINY):
    return choose_teacher_targets(with_distillation(recipe(name, stats), scratch=True), teacher)


def changed(changes, training=None, teacher=TINY):
    """As `fit` does it: the person's changes first, then what they leave open."""
    training = with_distillation(recipe("scratch", SITUATION), scratch=True) if training is None else training
    return override(training, changes, settle=lambda found: choose_teacher_targets(found, teacher, changes))


def test_a_new_vit_gets_the_token_and_hard_answers_on_every_view(subtests):
    for name in sorted(set(RECIPES) - {"paper-pretrain", "bit", "mae-finetune"}):
        with subtests.test(name=name):
            plain, taught = recipe(name, SITUATION), fresh(name)
            model = taught.model
            assert (model.distilled, model.class_token, model.pool) == (True, True, "class")
            assert isinstance(plain.objective, Supervised)
            wanted = Distill(**vars(plain.objective), targets="hard", answers="view")
            assert taught.objective == wanted  # its smoothing, keep schedule and all
            assert taught == replace(plain, model=model, objective=wanted)


def test_what_cannot_have_the_token_learns_with_its_one_classifier(subtests):
    """A CNN, and a ViT with a hidden layer before its classifier."""
    for name, model in (("plain", "efficientnet-b0@32"), ("bit", "bit-r50x1"), ("paper-pretrain", None)):
        with subtests.test(name=name, model=model):
            stats = replace(SITUATION, model=model)
            assert fresh(name, stats).model == recipe(name, stats).model


def test_a_hybrid_gets_the_token():
    assert fresh("plain", replace(SITUATION, model="C+Ti/16")).model.distilled


def test_given_weights_keep_the_tokens_that_they_have():
    for base in (TINY, replace(TINY, distilled=True)):
        stats = replace(SITUATION, base=base, base_preprocess=recipe("plain", SITUATION).preprocess)
        stats = replace(stats, base_preprocess=replace(stats.base_preprocess, size=(16, 16)))
        training = with_distillation(recipe("small-data", stats), scratch=False)
        assert training.model.distilled == base.distilled
        assert isinstance(training.objective, Distill)


def test_a_teacher_that_costs_more_than_a_step_of_the_student_looks_once():
    """A step is three forward passes; half of the patches in half of the steps make it cheaper."""
    small = replace(SITUATION, model="F/4@32", image_size=None)
    plain = recipe("plain", small)
    forward = count_flops(fresh("plain", small).model)
    half = count_flops(fresh("plain", small).model, 0.5)
    scheduled = replace(plain, objective=Supervised(keep_schedule=((0.5, 0.5),)))
    for training, step in ((plain, 3 * forward), (scheduled, 3 * (forward + half) / 2)):
        ways = set()
        for width in range(96, 240, 12):
            teacher = named_config("F/4@32", width=width)
            objective = choose_teacher_targets(with_distillation(training, scratch=True), teacher).objective
            once = count_flops(teacher) > step
            assert (objective.answers, objective.targets) == (("image", "soft") if once else ("view", "hard"))
            ways.add(once)
        assert ways == {True, False}


def test_single_fields_can_be_set_otherwise():
    changes = {"objective.targets": "soft", "objective.temperature": "2", "objective.weight": "0.9"}
    objective = changed({**changes, "objective.answers": "image"}).objective
    assert (objective.targets, objective.temperature, objective.weight) == ("soft", 2.0, 0.9)
    assert not changed({"model.distilled": "false"}).model.distilled


def way(changes, teacher=TINY):
    objective = changed(changes, teacher=teacher).objective
    return objective.answers, objective.targets


def test_what_is_learned_follows_how_the_teacher_is_asked_unless_both_are_set():
    costly = named_config("L/16")
    assert way({"objective.answers": "image"}) == ("image", "soft")
    assert way({"objective.answers": "view"}, costly) == ("view", "hard")
    assert way({"objective.targets": "soft"}) == ("view", "soft")
    assert way({"objective.targets": "hard"}, costly) == ("image", "hard")
    assert way({"objective.answers": "image", "objective.targets": "hard"}) == ("image", "hard")
    # the temperature acts wherever probabilities are learned
    assert changed({"objective.temperature": "2"}, teacher=costly).objective.temperature == 2
    assert changed({"objective.temperature": "2", "objective.answers": "image"}).objective.temperature == 2


def test_a_teacher_is_weighed_against_the_student_as_it_was_changed():
    teacher = changed({}).model  # of the student's own size: a third of a step
    assert way({}, teacher) == ("view", "hard")
    assert way({"model.depth": "1"}, teacher) == ("image", "soft")
    assert way({"objective.keep_schedule": "[[1.0,0.1]]"}, teacher) == ("image", "soft")


WRONG = {
    "objective.temperature=2": "objective.targets=soft",
    "objective.weight=0": "weight=0.*1",
    "objective.weight=1.5": "weight=1.5.*1",
    "objective.targets=both": r"objective\.targets\b.*both.* hard.*soft",
    "objective.answers=never": r"objective\.answers\b.*never.* view.*image",
    "objective.teacher=x": "objective.teacher",
}


def test_what_makes_no_sense_is_refused(subtests):
    for text, named in WRONG.items():
        with subtests.test(text), pytest.raises(UserError, match=named):
            changed(dict([text.split("=")]))


def test_a_recipe_without_labels_has_no_place_for_a_teacher():
    training = replace(recipe("scratch", SITUATION), objective=Mae())
    with pytest.raises(UserError, match="distill"):
        with_distillation(training, scratch=True)
