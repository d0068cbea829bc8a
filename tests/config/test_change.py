"""`--set NAME=VALUE`: every field by its name, and a sentence for every mistake."""

import pytest

from vitreous.config.change import change, parse_changes
from vitreous.errors import UserError
from vitreous.recipes.supervised import Situation, recipe

TRAINING = recipe("scratch-small", Situation(10, 50_000, 32, 3))


def changed(*texts, **ways):
    return change(TRAINING, parse_changes(texts), **ways)


def test_each_kind_of_field():
    new = changed(
        "freeze=2",
        "ema=0.99",
        "compile=true",
        "tokens=[[0.5, 0.25]]",
        "optimizer.name=sgd",
        "optimizer.clip=none",
        "augment.crop_scale=[0.3, 1]",
        "model.pool=mean",
    )
    assert (new.freeze, new.ema, new.compile, new.tokens) == (2, 0.99, True, ((0.5, 0.25),))
    assert (new.optimizer.name, new.optimizer.clip, new.augment.crop_scale) == ("sgd", None, (0.3, 1.0))
    assert new.model.pool == "mean"
    assert new.model.width == TRAINING.model.width
    assert new.optimizer.rate == TRAINING.optimizer.rate


def test_nothing_changed_is_the_same():
    assert changed() == TRAINING


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("freeze", "write NAME=VALUE"),
        ("freez=2", "did you mean freeze"),
        ("rate=2", "did you mean optimizer.rate"),
        ("optimizer=adamw", "there is no such field"),
        ("nowhere.rate=1", "there is no such field"),
        ("optimizer.rate=fast", "write a number"),
        ("optimizer.rate=-1", "must be above 0"),
        ("optimizer.name=adam", "adamw or sgd or muon"),
        ("compile=1", "true or false"),
        ("freeze=1.5", "a whole number"),
        ("freeze=99", "the model has 6 blocks"),
        ("tokens=0.5", "numbers in brackets"),
        ("tokens=[0.5]", "numbers in brackets"),
        ("augment.crop_scale=[0.5,1,2]", "numbers in brackets"),
        ("epochs=3", "--epochs"),
        ("model.image_size=[64,64]", "--image-size"),
        ("preprocess.mean=[0,0,0]", "--preprocess"),
    ],
)
def test_a_mistake_is_one_sentence_that_names_it(text, sentence):
    with pytest.raises(UserError, match="--set") as caught:
        changed(text)
    assert sentence in str(caught.value)
    assert text.partition("=")[0] in str(caught.value)


def test_given_weights_fix_the_model_but_not_its_dropout():
    assert changed("model.drop_path=0.1", weights=True).model.drop_path == 0.1
    with pytest.raises(UserError, match="the weights say what the model is"):
        changed("model.pool=mean", weights=True)
