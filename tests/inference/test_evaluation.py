"""Classes of data and outputs of ImageNet's classifiers; the prediction among all of them or among the data's."""

from importlib import resources

import numpy as np
import pytest
import torch

from support.colours import make_bundle, make_images
from vitreous import UserError
from vitreous.data.folder import FolderSource, Names
from vitreous.evaluation.classify import score_classes
from vitreous.inference.evaluation import match_classes
from vitreous.verbs.evaluate import evaluate
from vitreous.weights.bundle import load_bundle
from vitreous.weights.labels import (
    class_numbers,
    imagenet_names,
    imagenet_synsets,
    is_imagenet,
    read_labels,
    subset_name,
)


def timm_list(name):
    return (resources.files("timm") / "data" / "_info" / name).read_text().split()


def source_of(classes, tmp_path):
    """One image of each class, in the order of their names."""
    names = [f"{name}/0.png" for name in sorted(classes)]
    return FolderSource(tmp_path, Names(names), np.arange(len(names)), tuple(sorted(classes)))


def test_the_ids_are_those_of_the_challenge(shared_data):
    public = (shared_data / "imagenet_classes.json").read_text()
    assert list(imagenet_synsets()) == timm_list("imagenet_synsets.txt")
    assert all(synset in public for synset in imagenet_synsets())
    names = read_labels(shared_data / "imagenet_classes.json")
    assert is_imagenet(names)  # with underscores, and two cranes


def test_which_labels_are_imagenets():
    names = imagenet_names()
    assert is_imagenet(names)
    assert is_imagenet(imagenet_synsets())
    assert is_imagenet([f"{name.replace(' ', '_')}, something more" for name in names])
    assert not is_imagenet(names[:999])
    assert not is_imagenet(names[1:] + names[:1])
    assert not is_imagenet([str(k) for k in range(1000)])


def test_subsets_are_known_by_their_classes(subtests):
    for dataset in ("ImageNet-A", "ImageNet-R"):
        with subtests.test(dataset=dataset):
            letter = dataset[-1].lower()
            numbers = [int(k) for k in timm_list(f"imagenet_{letter}_indices.txt")]
            assert subset_name(numbers) == dataset
            assert subset_name(numbers[1:]) is None


def test_folders_of_ids_numbers_and_names(subtests, tmp_path):
    for labels in (imagenet_names(), imagenet_synsets()):
        with subtests.test(labels[0]):
            of_ids = match_classes(source_of(["n01440764", "n02123394", "n15075141"], tmp_path), labels)
            assert of_ids.source.labels.tolist() == [0, 283, 999]
            of_numbers = match_classes(source_of([str(k) for k in range(1000)], tmp_path), labels)
            expected = sorted(range(1000), key=str)  # as folders are listed: 0, 1, 10, 100...
            assert of_numbers.source.labels.tolist() == expected
            assert len(of_numbers.remarks) == 1
            of_names = match_classes(source_of(["tench", "Persian_cat", "toilet tissue"], tmp_path), labels)
            assert of_names.source.labels.tolist() == [283, 0, 999]
            for matched in (of_ids, of_numbers, of_names):
                assert (matched.label_space, matched.labels) == ("all", labels)


def test_what_is_not_of_imagenet_is_refused(tmp_path):
    with pytest.raises(UserError, match="class 'n99999999'"):
        match_classes(source_of(["n01440764", "n99999999"], tmp_path), imagenet_names())
    with pytest.raises(UserError, match="class 'n01440764'"):
        match_classes(source_of(["n01440764", "n01443537"], tmp_path), ("cat", "dog"))
    assert class_numbers(["tench", "1"]) is None


def test_a_dog_and_a_garment_of_one_name(tmp_path):
    labels = imagenet_names()
    assert (labels[264], labels[474]) == ("Cardigan", "cardigan")
    assert class_numbers(["Cardigan", "cardigan"]) == ("names", {"Cardigan": 264, "cardigan": 474})
    assert class_numbers(["Cardigan, Cardigan Welsh corgi", "TENCH"]) == (
        *("names", {"Cardigan, Cardigan Welsh corgi": 264, "TENCH": 0}),
    )
    by_ids = match_classes(source_of(["Cardigan", "cardigan"], tmp_path), imagenet_synsets())
    assert by_ids.source.labels.tolist() == [264, 474]
    with pytest.raises(UserError, match=r"'CARDIGAN': .*n02113186 .*n02963"):
        class_numbers(["tench", "CARDIGAN"])


def test_imagenet_a_and_r_are_judged_among_their_200_classes(subtests, tmp_path):
    for letter, among in (("a", None), ("r", None), ("r", "all"), ("a", "data")):
        with subtests.test(letter=letter, among=among):
            ids, labels = timm_list(f"imagenet_{letter}_synsets.txt"), imagenet_names()
            matched = match_classes(source_of(ids, tmp_path), labels, among)
            numbers = [imagenet_synsets().index(one) for one in sorted(ids)]
            if among == "all":
                assert (matched.label_space, matched.source.labels.tolist()) == ("all", numbers)
                continue
            assert matched.label_space == "data"
            assert matched.labels == tuple(labels[k] for k in numbers)
            assert matched.source.labels.tolist() == list(range(200))
            assert "200" in matched.remarks[-1]
            # As Hendrycks et al. judge: the 200 columns, then the largest; probabilities over these columns alone.
            logits = torch.randn(200, 1000, generator=torch.Generator().manual_seed(0)) * 3
            kept = logits[:, numbers].double().numpy()
            right = kept.argmax(axis=1) == np.arange(200)
            chance = np.exp(kept) / np.exp(kept).sum(axis=1, keepdims=True)
            found = score_classes(matched.select(logits), torch.from_numpy(matched.source.labels), matched.labels)
            assert found.top1 == right.mean()
            assert found.loss == pytest.approx(-np.log(chance[np.arange(200), np.arange(200)]).mean())


def test_any_data_may_be_judged_among_their_own_classes(tmp_path):
    """A model that takes everything for blue is right about two colours of three where blue cannot be predicted."""
    bundle = load_bundle(make_bundle(tmp_path / "b"))
    with torch.no_grad():
        bundle.model.head.bias[0] += 1000
    make_images(tmp_path / "p", colours=("red", "green"))
    every = evaluate(bundle, tmp_path / "p")
    assert (every.result.top1, every.label_space, every.remarks) == (0.0, "all", ())
    own = evaluate(bundle, tmp_path / "p", label_space="data")
    assert (own.result.top1, own.result.labels, own.label_space) == (1.0, ("green", "red"), "data")
    (remark,) = own.remarks
    assert "2" in remark
    assert "3" in remark
    whole = make_images(tmp_path / "q")
    assert evaluate(bundle, whole, label_space="data").label_space == "all"  # they have all classes
