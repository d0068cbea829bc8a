"""What a teacher changes in a recipe's training: the token, and how often the teacher looks."""

from dataclasses import replace

import pytest

from vitreous import UserError, ViTConfig
from vitreous.config.change import change
from vitreous.config.objective import Distill, Mae, Supervised
from vitreous.model.family import count_flops, named_config
from vitreous.recipes.distill import distilled
from vitreous.recipes.situation import Situation
from vitreous.recipes.supervised import RECIPES, recipe

TINY = ViTConfig(width=16, depth=1, heads=2, mlp_width=32, patch=4, image_size=(16, 16), classes=3)
SITUATION = Situation(3, 100, 100, 3)


def fresh(name, situation=SITUATION, teacher=TINY):
    return distilled(recipe(name, situation), teacher, scratch=True)


@pytest.mark.parametrize("name", sorted(set(RECIPES) - {"paper-pretrain", "bit", "mae-finetune"}))
def test_a_new_vit_gets_the_token_and_hard_answers_on_every_view(name):
    plain, taught = recipe(name, SITUATION), fresh(name)
    model = taught.model
    assert (model.distilled, model.class_token, model.pool) == (True, True, "class")
    assert isinstance(plain.objective, Supervised)
    wanted = Distill(**vars(plain.objective), targets="hard", answers="view")
    assert taught.objective == wanted  # its smoothing, keep schedule and all
    assert taught == replace(plain, model=model, objective=wanted)


@pytest.mark.parametrize(
    ("name", "model"), [("plain", "efficientnet-b0@32"), ("bit", "bit-r50x1"), ("paper-pretrain", None)], ids=str
)
def test_what_cannot_have_the_token_learns_with_its_one_classifier(name, model):
    """A CNN, and a ViT with a hidden layer before its classifier."""
    situation = replace(SITUATION, model=model)
    assert fresh(name, situation).model == recipe(name, situation).model


def test_a_hybrid_gets_the_token():
    assert fresh("plain", replace(SITUATION, model="C+Ti/16")).model.distilled


def test_given_weights_keep_the_tokens_that_they_have():
    for base in (TINY, replace(TINY, distilled=True)):
        situation = replace(SITUATION, base=base, base_preprocess=recipe("plain", SITUATION).preprocess)
        situation = replace(situation, base_preprocess=replace(situation.base_preprocess, size=(16, 16)))
        training = distilled(recipe("small-data", situation), TINY, scratch=False)
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
            objective = distilled(training, teacher, scratch=True).objective
            once = count_flops(teacher) > step
            assert (objective.answers, objective.targets) == (("picture", "soft") if once else ("view", "hard"))
            ways.add(once)
        assert ways == {True, False}


def test_single_fields_can_be_set_otherwise():
    changes = {"objective.targets": "soft", "objective.temperature": "2", "objective.weight": "0.9"}
    objective = change(fresh("scratch"), {**changes, "objective.answers": "picture"}).objective
    assert (objective.targets, objective.temperature, objective.weight) == ("soft", 2.0, 0.9)
    assert not change(fresh("scratch"), {"model.distilled": "false"}).model.distilled


WRONG = {
    "objective.temperature=2": "does nothing without objective.targets=soft",
    "objective.weight=0": "above 0 and at most 1",
    "objective.weight=1.5": "above 0 and at most 1",
    "objective.targets=both": "write hard or soft",
    "objective.answers=never": "write view or picture",
    "objective.teacher=x": "there is no such field",
}


@pytest.mark.parametrize(("text", "says"), WRONG.items())
def test_what_makes_no_sense_is_refused(text, says):
    with pytest.raises(UserError, match=says):
        change(fresh("scratch"), dict([text.split("=")]))


def test_a_recipe_without_labels_has_no_place_for_a_teacher():
    training = replace(recipe("scratch", SITUATION), objective=Mae())
    with pytest.raises(UserError, match="distill: a teacher's answers go with labels, and this recipe learns by mae"):
        distilled(training, TINY, scratch=True)
