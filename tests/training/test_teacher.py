"""A teacher: which models can be one, and that its answers are in the order of the data's classes."""

from dataclasses import replace

import pytest
import torch
from safetensors.torch import save_file

from support.colours import COLOURS, make_bundle, make_images
from vitreous import UserError, ViT
from vitreous.callbacks import Callbacks
from vitreous.config.data import Preprocess
from vitreous.config.objective import Distill
from vitreous.config.train import Training
from vitreous.data.batch import Batch
from vitreous.data.opening import open_data
from vitreous.training.teaching.teacher import match_classes, open_teacher, teacher_predictions
from vitreous.weights.bundle import bundle_digest, load_bundle, save_bundle


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    return make_bundle(tmp_path_factory.mktemp("teacher") / "bundle")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return open_data(make_images(tmp_path_factory.mktemp("data") / "images"))


def test_columns_follow_the_names():
    assert match_classes(["a", "b", "c", "d"], ["d", "a"]).tolist() == [3, 0]
    assert match_classes(COLOURS, ("red", "blue", "green")).tolist() == [2, 0, 1]


def test_scores_are_those_of_the_datas_classes(bundle):
    images = torch.randn(5, 3, 16, 16)
    teacher = open_teacher(bundle, ("red", "blue"))
    with torch.no_grad():
        every = load_bundle(bundle).model(images)
    torch.testing.assert_close(teacher.logits(images), every[:, [2, 0]])
    assert not teacher.network.training
    assert not any(parameter.requires_grad for parameter in teacher.network.parameters())
    assert not teacher.logits(images).requires_grad


def test_another_projects_file_is_a_teacher_too(tmp_path):
    """Its tensors are copied: mapped ones lie as they come, and products of such round differently."""
    model = ViT("Ti/4@16", depth=1, classes=3)
    save_file(model.state_dict(), tmp_path / "w.safetensors", metadata={"format": "pt", "odd": "x"})
    teacher = open_teacher(tmp_path / "w.safetensors", ("2", "0"))
    assert teacher.columns.tolist() == [2, 0]
    assert torch.equal(teacher.network.pos_embed, model.pos_embed)
    assert all(parameter.data_ptr() % 64 == 0 for parameter in teacher.network.parameters())


def test_a_class_that_it_does_not_know(bundle, subtests):
    for classes, named in (
        (("red", "pink"), "'pink'.* 3 "),
        (("pink", "teal", "red", "grey"), "'pink'.* 2 "),
        (("Red",), "'Red'"),
    ):
        with subtests.test(classes=classes), pytest.raises(UserError, match=f"^{bundle}: .*{named}.*--labels"):
            open_teacher(bundle, classes)


def test_a_name_of_two_classes_matters_where_the_data_have_it(tmp_path):
    place = make_bundle(tmp_path / "b", labels=("crane", "red", "crane"))
    assert open_teacher(place, ("red",)).columns.tolist() == [1]
    with pytest.raises(UserError, match="'crane'"):
        open_teacher(place, ("crane", "red"))


def test_a_model_without_a_classifier_has_nothing_to_teach(tmp_path):
    model = ViT("F/4@16", classes=0)
    save_bundle(tmp_path / "b", model, Preprocess(size=(16, 16)), ())
    with pytest.raises(UserError, match=str(tmp_path / "b")):
        open_teacher(tmp_path / "b", COLOURS)


def test_the_digest_is_of_all_that_answers_follow_from(bundle):
    opened = load_bundle(bundle)
    digests = {bundle_digest(opened)}
    digests.add(bundle_digest(replace(opened, labels=("green", "blue", "red"))))
    digests.add(bundle_digest(replace(opened, preprocess=replace(opened.preprocess, crop=0.9))))
    for computed in ({"heads": 4}, {"norm_eps": 1e-5}):  # the same tensors
        other = ViT(replace(opened.model.config, **computed))
        other.load_state_dict(opened.model.state_dict())
        digests.add(bundle_digest(replace(opened, model=other)))
    with torch.no_grad():
        opened.model.head.bias[0] += 1e-6
    digests.add(bundle_digest(opened))
    assert len(digests) == 6
    assert open_teacher(bundle, COLOURS).digest == open_teacher(bundle, ("red",)).digest


# ---- what it says of each image once -------------------------------------------------------------------------------

ONCE = Distill(targets="soft", answers="image")


def predict_batches(teacher, data, clock=None, look=lambda what, done, total: None):
    training = Training(teacher.network.config, teacher.preprocess, ONCE)
    targets = teacher_predictions(teacher, training, data.train, 0, clock, Callbacks(progress=look))
    return targets(Batch.of(torch.zeros(len(data.train), 3, 16, 16)), lambda logits: logits)


def test_answers_are_computed_once_and_kept(bundle, data, tmp_path, monkeypatch):
    monkeypatch.setenv("VITREOUS_CACHE", str(tmp_path))
    teacher, heard = open_teacher(bundle, data.classes), []
    first = predict_batches(teacher, data, look=lambda *told: heard.append(told))
    assert [told[1:] for told in heard] == [(12, 12)]
    again = predict_batches(teacher, data, look=lambda *told: heard.append(told))
    assert len(heard) == 1
    assert torch.equal(first, again)
    assert (first.argmax(dim=1).numpy() == data.train.labels).all()
    other = data.train.relabelled(("red", "green", "blue"))
    turned = predict_batches(open_teacher(bundle, other.classes), replace(data, splits={"train": other}))
    assert torch.equal(turned, first[:, [2, 1, 0]])


class SlowDeadline:
    """Each question takes a second."""

    _now = 0.0

    def __init__(self, seconds):
        self.text, self.seconds = f"{seconds:.0f}s", seconds

    def now(self):
        self._now += 1.0
        return self._now


@pytest.fixture
def small_batches(tmp_path, monkeypatch):
    """Of 4 images, three in all, whose answers are not kept yet."""
    monkeypatch.setenv("VITREOUS_CACHE", str(tmp_path))
    monkeypatch.setattr("vitreous.training.teaching.teacher.inference_batch", lambda config: 4)


def test_a_teacher_that_leaves_no_time_is_refused_with_the_time_that_would_do(bundle, data, tmp_path, small_batches):
    """After a second 4 images are done, so 8 take 2 more; asked a third time, the clock says 3: 5 of 10 seconds."""
    with pytest.raises(UserError) as error:
        predict_batches(open_teacher(bundle, data.classes), data, clock=SlowDeadline(9.0))
    said = str(error.value)
    assert all(text in said for text in ("budget 9s", str(bundle), "2 s", "10s", "objective.answers=view"))
    assert not list(tmp_path.rglob("*.safetensors"))


def test_after_the_last_image_nothing_is_refused(bundle, data, small_batches):
    """After 8 images the clock says 5, and 4 more take 1.5 at the pace so far: just half of the 13 seconds."""
    clock = SlowDeadline(13.0)
    assert predict_batches(open_teacher(bundle, data.classes), data, clock=clock).any()
    assert clock.now() > 0.5 * clock.seconds  # it is late now, but what it said is said


def test_time_that_was_gone_before_counts(bundle, data, small_batches):
    clock = SlowDeadline(13.0)
    clock.now()
    with pytest.raises(UserError, match="15s"):
        predict_batches(open_teacher(bundle, data.classes), data, clock=clock)
