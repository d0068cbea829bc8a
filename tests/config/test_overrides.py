"""`NAME=VALUE`: every field by its name, and a sentence for every mistake."""

import pytest

from vitreous.config.overrides import override, override_texts, parse_overrides
from vitreous.errors import UserError
from vitreous.training.recipes.pretrain import PRETRAINING
from vitreous.training.recipes.supervised import DatasetStats, recipe

TRAINING = recipe("scratch-small", DatasetStats(10, 50_000, 32, 3))


def changed(*texts, **ways):
    return override(TRAINING, parse_overrides(texts), **ways)


def test_each_kind_of_field():
    new = changed(
        "freeze=2",
        "ema=0.99",
        "compile=true",
        "objective.keep_schedule=[[0.5, 0.25]]",
        "objective.class_weights=true",
        "optimizer.name=sgd",
        "optimizer.clip=none",
        "augment.crop_scale=[0.3, 1]",
        "model.pool=mean",
    )
    assert (new.freeze, new.ema, new.compile) == (2, 0.99, True)
    assert (new.objective.keep_schedule, new.objective.class_weights) == (((0.5, 0.25),), True)
    assert new.objective.label_smoothing == TRAINING.objective.label_smoothing > 0
    assert (new.optimizer.name, new.optimizer.clip, new.augment.crop_scale) == ("sgd", None, (0.3, 1.0))
    assert new.model.pool == "mean"
    assert new.model.width == TRAINING.model.width
    assert new.optimizer.learning_rate == TRAINING.optimizer.learning_rate


def test_nothing_changed_is_the_same():
    assert changed() == TRAINING


MISTAKES = {
    "freeze": "NAME=VALUE",
    "freez=2": "freeze",
    "layer_decay=2": "optimizer.layer_decay",
    "optimizer.rate=2": "optimizer.learning_rate",
    "keep_schedule=[]": "objective.keep_schedule",
    "objective.mask=0.5": "objective.class_weights",
    "objective=mae": "objective.keep_schedule",
    "optimizer=adamw": "optimizer.name",
    "nowhere.rate=1": "batch_size",
    "optimizer.learning_rate=fast": "",
    "optimizer.learning_rate=-1": " 0.",
    "optimizer.name=adam": "muon",
    "compile=1": "True",
    "freeze=1.5": "",
    "freeze=99": " 6 ",
    "objective.keep_schedule=0.5": "[0.2,1.0]",
    "objective.keep_schedule=[0.5]": "2",
    "augment.crop_scale=[0.5,1,2]": "2",
    "optimizer.betas=[0.9,1]": "below 1",
    "objective.keep_schedule=[[0.5,2]]": " 1.",
    "epochs=3": "budget",
    "seed=3": "seed",
    "accumulate=2": "micro_batch",
    "model.image_size=[64,64]": "image_size",
    "model.classes=3": "",
    "preprocess.mean=[0,0,0]": "preprocess",
}


def test_a_mistake_is_one_sentence_that_names_it(subtests):
    """First the field; then, where they have names, what to write instead or where it is set."""
    for text, named in MISTAKES.items():
        with subtests.test(text):
            with pytest.raises(UserError) as caught:
                changed(text)
            said = str(caught.value)
            field, _, reason = said.partition(": ")
            assert text.partition("=")[0] in field
            assert named in reason
            assert said.endswith((".", "?"))
            assert "--" not in said  # whoever calls it from Python has no flags


def test_given_weights_fix_the_model_but_not_its_dropout():
    assert changed("model.drop_path=0.1", weights=True).model.drop_path == 0.1
    with pytest.raises(UserError, match=r"model\.pool"):
        changed("model.pool=mean", weights=True)


def test_fields_of_other_objectives_and_fields_within_fields():
    training = PRETRAINING["dino"](DatasetStats(0, 50_000, 32, 3))
    new = override(
        training, parse_overrides(["objective.crops.local_views=2", "objective.teacher_temperature=[0.02,0.04]"])
    )
    assert new.objective.crops.local_views == 2
    assert new.objective.teacher_temperature == (0.02, 0.04)
    assert new.objective.crops.local_size == training.objective.crops.local_size
    assert new.objective.prototypes == training.objective.prototypes
    with pytest.raises(UserError, match=r"objective\.crops\.local_views"):
        override(training, {"local_views": "2"})
    with pytest.raises(UserError, match=r"prototypes=1: .*2"):
        override(training, {"objective.prototypes": "1"})


def test_the_learning_rate_has_a_short_name():
    for name in ("lr", "learning_rate", "optimizer.lr"):
        assert override_texts({name: 2e-4}) == {"optimizer.learning_rate": "0.0002"}
        assert parse_overrides([f"{name}=2e-4"]) == {"optimizer.learning_rate": "2e-4"}
    with pytest.raises(UserError, match="lr"):
        parse_overrides(["optimizer.learning_rate=1", "lr=2"])
