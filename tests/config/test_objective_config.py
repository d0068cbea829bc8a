"""What an objective says of itself, and which trainings are refused with a sentence."""

import json

import pytest

from vitreous import UserError, ViTConfig
from vitreous.config.data import MultiCrop, Preprocess, View
from vitreous.config.objective import Dino, Distill, Mae, MaskedPatch, Supervised, TokenLabel
from vitreous.config.train import Training
from vitreous.objectives.build import OBJECTIVES, objective_from_json, objective_to_json

MODEL = ViTConfig(width=16, depth=2, heads=2, mlp_width=32, patch=4, image_size=(16, 16), classes=3)


def training(objective, **more):
    return Training(MODEL, Preprocess(size=(16, 16)), objective, **more)


KINDS = (
    Supervised(0.1, class_weights=True, keep_schedule=((0.5, 0.25), (0.9, 0.5))),
    Distill(0.1, targets="soft", weight=0.2, temperature=2.0, answers="image", keep_schedule=((0.5, 0.25),)),
    Mae(mask=0.6, decoder_width=32, decoder_heads=2, normalise=False),
    MaskedPatch(mask=0.4, by_mask_token=0.7, by_other_patch=0.2, bits=2),
    Dino(crops=MultiCrop(local_size=(8, 8)), teacher_temperature=(0.01, 0.02), ibot_weight=1.0, ibot_mask=(0.2, 0.3)),
    TokenLabel(0.1, keep_schedule=((0.5, 0.5),), token_weight=1.5, top=3),
)


def test_every_kind_survives_json(subtests):
    assert {objective.kind for objective in KINDS} == set(OBJECTIVES)
    for objective in KINDS:
        with subtests.test(objective.kind):
            kept = json.loads(json.dumps(objective_to_json(objective)))
            assert kept["kind"] == objective.kind
            again = objective_from_json(kept)
            assert again == objective
            assert hash(again) == hash(objective)  # lists became tuples again, all the way down


def test_every_kind_is_in_the_table_under_its_name():
    assert {name: kind.config.kind for name, kind in OBJECTIVES.items()} == {name: name for name in OBJECTIVES}


def test_an_unknown_kind_is_a_sentence():
    with pytest.raises(UserError, match="objective 'magic'") as error:
        objective_from_json({"kind": "magic"})
    assert all(kind in str(error.value) for kind in OBJECTIVES)


def test_which_views_are_wanted():
    assert Supervised().views == Mae().views == MaskedPatch().views == {"image": View()}
    crops = MultiCrop(3, (0.5, 1.0), (12, 12), 4, (0.1, 0.5), (8, 8))
    assert Dino(crops=crops).views == {"global": View(3, (0.5, 1.0), (12, 12)), "local": View(4, (0.1, 0.5), (8, 8))}


def test_the_keep_schedule_by_progress():
    schedule = Supervised(keep_schedule=((0.5, 0.25), (0.9, 0.5)))
    shares = [schedule.keep_fraction(progress) for progress in (0.0, 0.4999, 0.5, 0.8999, 0.9, 1.0)]
    assert shares == [0.25, 0.25, 0.5, 0.5, 1.0, 1.0]
    assert schedule.stages == (0.5, 0.9, 1.0)
    assert Supervised().stages == Mae().stages == (1.0,)
    assert Supervised().keep_fraction(0.3) == 1.0


def test_what_compares_the_images_of_a_batch_is_refused_in_parts():
    for objective, named in (
        (Dino(sinkhorn_iterations=3), "sinkhorn_iterations"),
        (Dino(koleo_weight=0.1), "koleo_weight"),
        (Dino(sinkhorn_iterations=3, koleo_weight=0.1), "sinkhorn_iterations"),
    ):
        with pytest.raises(UserError, match=f"micro_batch=8: {named} .* {named}=0"):
            training(objective, batch_size=16, micro_batch=8)
        assert training(objective).micro_batch is None
        assert training(objective, batch_size=16, micro_batch=16).micro_batch == 16  # all at once
    for divisible in (Dino(ibot_weight=1.0), Mae(), MaskedPatch(), Supervised(class_weights=True)):
        assert training(divisible, batch_size=16, micro_batch=8).micro_batch == 8


MISTAKES = (
    (Supervised, {"label_smoothing": 1.0}, "label_smoothing=1.0: .*0 .*1"),
    (Supervised, {"keep_schedule": ((0.9, 0.5), (0.5, 0.5))}, "keep_schedule="),
    (Supervised, {"keep_schedule": ((0.9, 0.0),)}, "keep_schedule=.*0 .*1"),
    (Mae, {"mask": 1.0}, "mask=1.0: "),
    (Mae, {"decoder_depth": 0}, "decoder_depth=0: .*1"),
    (Mae, {"decoder_width": 10, "decoder_heads": 2}, "decoder_width=10"),
    (MaskedPatch, {"mask": 0.0}, "mask=0.0: "),
    (MaskedPatch, {"mask": 1.1}, "mask=1.1: "),
    (MaskedPatch, {"by_mask_token": 0.95}, "by_mask_token=0.95, by_other_patch=0.1: "),
    (MaskedPatch, {"by_other_patch": -0.1}, "by_other_patch=-0.1: "),
    (MaskedPatch, {"bits": 0}, "bits=0: .*1 .*4"),
    (Dino, {"prototypes": 1}, "prototypes=1: .*2"),
    (Dino, {"prototypes": 0}, "prototypes=0: .*2"),
    (Dino, {"momentum": 1.5}, "momentum=1.5: .*0 .*1"),
    (Dino, {"freeze_last_layer": -0.1}, "freeze_last_layer=-0.1: .*0 .*1"),
    (Dino, {"sinkhorn_iterations": -1}, "sinkhorn_iterations=-1: .*0"),
    (Dino, {"koleo_weight": -0.1}, "koleo_weight=-0.1: .*0"),
    (Dino, {"ibot_weight": -1.0}, "ibot_weight=-1.0: .*0"),
    (Dino, {"ibot_mask": (0.5, 0.1)}, "ibot_mask=.*0 .*1"),
    (Dino, {"keep": 0}, "keep=0: .*0"),
    (Dino, {"teacher_temperature": (0.0, 0.1)}, r"teacher_temperature\[0\]=0.0: .*0"),
    (Dino, {"keep": 0.5, "ibot_weight": 1.0}, "keep=1 .*ibot_weight=0"),
    (Dino, {"crops": MultiCrop(global_views=1)}, "global_views=1"),
    (TokenLabel, {"token_weight": 0.0}, "token_weight"),
    (TokenLabel, {"token_weight": -1.0}, "token_weight"),
    (TokenLabel, {"top": 0}, "top"),
    (TokenLabel, {"label_smoothing": 2.0}, "label_smoothing"),
)


def test_mistakes_are_named(subtests):
    for kind, fields, named in MISTAKES:
        with subtests.test(kind.__name__, **fields), pytest.raises(UserError, match=named):
            kind(**fields)


IMPOSSIBLE = (
    ({"wise_ft_alpha": 0.0}, "wise_ft_alpha=0.0: .*0 .*1"),
    ({"freeze": 3}, "freeze=3: .*2"),
    ({"micro_batch": 0}, "micro_batch=0: .*1"),
    ({"ema": 1.0}, "ema=1.0: .*0 .*1"),
    ({"preprocess": Preprocess(size=(32, 32))}, r"preprocess.size=\(32, 32\).*\(16, 16\), 3"),
)


def test_a_training_that_cannot_be(subtests):
    for fields, named in IMPOSSIBLE:
        with subtests.test(**fields), pytest.raises(UserError, match=named):
            Training(**{"model": MODEL, "preprocess": Preprocess(size=(16, 16)), **fields})
