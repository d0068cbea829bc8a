"""What an objective says of itself, and which trainings are refused with a sentence."""

import json

import pytest

from vitreous import UserError, ViTConfig
from vitreous.config.data import MultiCrop, Preprocess, View
from vitreous.config.objective import Dino, Distill, Mae, MaskedPatch, Supervised
from vitreous.config.train import Training
from vitreous.objectives.build import OBJECTIVES, objective_from_json, objective_to_json

MODEL = ViTConfig(width=16, depth=2, heads=2, mlp_width=32, patch=4, image_size=(16, 16), classes=3)


def training(objective, **more):
    return Training(MODEL, Preprocess(size=(16, 16)), objective, **more)


@pytest.mark.parametrize(
    "objective",
    [
        Supervised(0.1, class_weights=True, keep_schedule=((0.5, 0.25), (0.9, 0.5))),
        Distill(0.1, targets="soft", weight=0.2, temperature=2.0, answers="picture", keep_schedule=((0.5, 0.25),)),
        Mae(mask=0.6, decoder_width=32, decoder_heads=2, normalise=False),
        MaskedPatch(mask=0.4, by_mask_token=0.7, by_other_patch=0.2, bits=2),
        Dino(
            crops=MultiCrop(local_size=(8, 8)), teacher_temperature=(0.01, 0.02), ibot_weight=1.0, ibot_mask=(0.2, 0.3)
        ),
    ],
    ids=lambda objective: objective.kind,
)
def test_every_kind_survives_json(objective):
    kept = json.loads(json.dumps(objective_to_json(objective)))
    assert kept["kind"] == objective.kind
    again = objective_from_json(kept)
    assert again == objective
    assert hash(again) == hash(objective)  # lists became tuples again, all the way down


def test_every_kind_is_in_the_table_under_its_name():
    assert {name: kind.config.kind for name, kind in OBJECTIVES.items()} == {name: name for name in OBJECTIVES}


def test_an_unknown_kind_is_a_sentence():
    known = ", ".join(OBJECTIVES)
    with pytest.raises(UserError, match=f"objective 'magic': unknown to this vitreous; it knows {known}"):
        objective_from_json({"kind": "magic"})


def test_which_views_are_wanted():
    assert Supervised().views == Mae().views == MaskedPatch().views == {"image": View()}
    crops = MultiCrop(3, (0.5, 1.0), (12, 12), 4, (0.1, 0.5), (8, 8))
    assert Dino(crops=crops).views == {"global": View(3, (0.5, 1.0), (12, 12)), "local": View(4, (0.1, 0.5), (8, 8))}


def test_the_keep_schedule_by_progress():
    schedule = Supervised(keep_schedule=((0.5, 0.25), (0.9, 0.5)))
    shares = [schedule.keep_share(progress) for progress in (0.0, 0.4999, 0.5, 0.8999, 0.9, 1.0)]
    assert shares == [0.25, 0.25, 0.5, 0.5, 1.0, 1.0]
    assert schedule.stages == (0.5, 0.9, 1.0)
    assert Supervised().stages == Mae().stages == (1.0,)
    assert Supervised().keep_share(0.3) == 1.0


@pytest.mark.parametrize(
    ("objective", "named"),
    [
        (Dino(sinkhorn_iterations=3), "sinkhorn_iterations"),
        (Dino(koleo_weight=0.1), "koleo_weight"),
        (Dino(sinkhorn_iterations=3, koleo_weight=0.1), "sinkhorn_iterations"),
    ],
)
def test_what_compares_the_pictures_of_a_batch_is_refused_in_parts(objective, named):
    with pytest.raises(UserError, match=f"accumulate=2: {named} compares the pictures of a batch.*or {named}=0"):
        training(objective, accumulate=2)
    assert training(objective).accumulate == 1
    for divisible in (Dino(ibot_weight=1.0), Mae(), MaskedPatch(), Supervised(class_weights=True)):
        assert training(divisible, accumulate=2).accumulate == 2


@pytest.mark.parametrize(
    ("kind", "fields", "message"),
    [
        (Supervised, {"label_smoothing": 1.0}, "label_smoothing=1.0: must be at least 0 and below 1"),
        (Supervised, {"keep_schedule": ((0.9, 0.5), (0.5, 0.5))}, "keep_schedule=.*rising shares"),
        (Supervised, {"keep_schedule": ((0.9, 0.0),)}, "keep_schedule=.*0 to 1"),
        (Mae, {"mask": 1.0}, "mask=1.0: give the share"),
        (Mae, {"decoder_depth": 0}, "decoder_depth=0: must be at least 1"),
        (Mae, {"decoder_width": 10, "decoder_heads": 2}, "decoder_width=10"),
        (MaskedPatch, {"mask": 0.0}, "mask=0.0: give the share of corrupted patches"),
        (MaskedPatch, {"mask": 1.1}, "mask=1.1: give the share of corrupted patches"),
        (MaskedPatch, {"by_mask_token": 0.95}, "by_mask_token=0.95, by_other_patch=0.1: give shares"),
        (MaskedPatch, {"by_other_patch": -0.1}, "by_other_patch=-0.1: give shares"),
        (MaskedPatch, {"bits": 0}, "bits=0: must be at least 1 and at most 4"),
        (Dino, {"prototypes": 1}, "prototypes=1: must be at least 2"),
        (Dino, {"momentum": 1.5}, "momentum=1.5: must be between 0 and 1"),
        (Dino, {"freeze_last_layer": -0.1}, "freeze_last_layer=-0.1: must be between 0 and 1"),
        (Dino, {"sinkhorn_iterations": -1}, "sinkhorn_iterations=-1: must be 0 or more"),
        (Dino, {"koleo_weight": -0.1}, "koleo_weight=-0.1: must be 0 or more"),
        (Dino, {"ibot_weight": -1.0}, "ibot_weight=-1.0: must be 0 or more"),
        (Dino, {"ibot_mask": (0.5, 0.1)}, "ibot_mask=.*0 < least <= greatest < 1"),
    ],
)
def test_mistakes_are_named(kind, fields, message):
    with pytest.raises(UserError, match=message):
        kind(**fields)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"wise_ft_alpha": 0.0}, "wise_ft_alpha=0.0: must be above 0 and at most 1"),
        ({"freeze": 3}, "freeze=3: the model has 2 layers"),
        ({"accumulate": 0}, "accumulate=0: must be at least 1"),
        ({"ema": 1.0}, "ema=1.0: must be between 0 and 1"),
        ({"preprocess": Preprocess(size=(32, 32))}, r"preprocess.size=\(32, 32\).*must be the model's, \(16, 16\), 3"),
    ],
)
def test_a_training_that_cannot_be(fields, message):
    with pytest.raises(UserError, match=message):
        Training(**{"model": MODEL, "preprocess": Preprocess(size=(16, 16)), **fields})
