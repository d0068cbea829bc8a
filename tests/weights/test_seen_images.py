"""A bundle tells which images its training saw: by their bytes, whatever the files are called now."""

import json
from base64 import b64decode
from hashlib import blake2b

import numpy as np
import pytest

from support.greys import draw_images, make_weights
from support.tiny_models import LABELS, preprocess_for, random_model
from vitreous import UserError, fit, pack_data
from vitreous.data.joined import JoinedSource
from vitreous.data.opening import open_dataset
from vitreous.data.shards.source import ShardSource
from vitreous.storage.manifest import write_manifest
from vitreous.weights.bundle import load_bundle, save_bundle
from vitreous.weights.seen_images import SeenImages, find_seen_images


def hashes_of(paths):
    """By the definition in the file, with Python alone."""
    return sorted({int.from_bytes(blake2b(path.read_bytes(), digest_size=16).digest()[:8], "little") for path in paths})


def kept_in(folder, split):
    fields = json.loads((folder / "seen-images.json").read_text())
    return np.frombuffer(b64decode(fields[split]), "<u8").tolist()


@pytest.mark.slow
def test_a_training_keeps_what_it_was_trained_and_selected_on(tmp_path):
    draw_images(tmp_path / "photos", count=12)
    files = list((tmp_path / "photos").rglob("*.png"))
    fit(tmp_path / "photos", epochs=1, out=tmp_path / "run", workers=0)
    bundle = load_bundle(tmp_path / "run")
    train, val = (kept_in(tmp_path / "run/bundle", split) for split in ("train", "val"))
    assert sorted(train + val) == hashes_of(files)
    data = open_dataset(tmp_path / "photos")
    overlap = bundle.seen_images.overlap(data.train)
    assert (overlap.n, overlap.train, overlap.val) == (len(files), len(train), len(val))
    draw_images(tmp_path / "others", count=3, side=21)
    overlap = bundle.seen_images.overlap(open_dataset(tmp_path / "others").train)
    assert (overlap.train, overlap.val, overlap.sentence) == (0, 0, None)
    copies = tmp_path / "others"  # known by their bytes, under other names
    for number, path in enumerate(files[:5]):
        (copies / path.parent.name / f"new-{number}.png").write_bytes(path.read_bytes())
    overlap = bundle.seen_images.overlap(open_dataset(copies).train)
    assert overlap.train + overlap.val == 5
    assert overlap.sentence is not None


@pytest.mark.slow
def test_images_of_the_weights_count_too(tmp_path):
    draw_images(tmp_path / "first", count=10)
    draw_images(tmp_path / "second", count=10, side=21)
    first, second = (open_dataset(tmp_path / name) for name in ("first", "second"))
    make_weights(tmp_path / "bundle")
    opened = load_bundle(tmp_path / "bundle")
    seen = find_seen_images(first, ())
    start = tmp_path / "start"
    save_bundle(start, opened.model, opened.preprocess, opened.labels, seen_images=seen)
    fit(tmp_path / "second", weights=start, epochs=1, out=tmp_path / "run", workers=0)
    found = load_bundle(tmp_path / "run").seen_images
    assert found.overlap(first.train).train == len(first.train)
    both = found.overlap(second.train)
    assert both.train + both.val == len(second.train)


def save(place, seen):
    model = random_model()
    return save_bundle(place, model, preprocess_for(model), LABELS[: model.config.classes], seen_images=seen)


def test_a_bundle_without_stays_readable_and_a_damaged_list_is_refused(tmp_path):
    assert load_bundle(save(tmp_path / "old", None)).seen_images is None
    seen = SeenImages(np.array([1, 2**63], dtype=np.uint64), np.array([], dtype=np.uint64))
    place = save(tmp_path / "new", seen)
    assert load_bundle(place).seen_images.train.tolist() == [1, 2**63]
    file = place / "seen-images.json"
    for text in ("[]", '{"train": "!", "val": "", "not_kept": null}', '{"train": "AAA=", "val": "", "not_kept": null}'):
        file.write_text(text)
        write_manifest(place)
        with pytest.raises(UserError, match=r"seen-images\.json"):
            load_bundle(place)


def test_images_in_shards_are_not_read_to_compare_them(tmp_path, monkeypatch):
    """Each may be a request; alone and joined to others."""
    draw_images(tmp_path / "photos", count=4)
    plain = open_dataset(tmp_path / "photos").train
    seen = find_seen_images(open_dataset(tmp_path / "photos"))
    packed = open_dataset(pack_data(tmp_path / "photos", tmp_path / "shards").folder).train
    monkeypatch.setattr(ShardSource, "content", lambda *_: pytest.fail("was read"))
    for source in (packed, JoinedSource([plain, packed])):
        found = seen.overlap(source)
        assert (found.n, found.train, found.val) == (len(source), 0, 0)
        assert found.not_kept
    assert seen.overlap(plain).train == len(plain)


def test_what_took_too_long_is_said_and_not_guessed(tmp_path):
    draw_images(tmp_path / "photos", count=4)
    data = open_dataset(tmp_path / "photos")
    found = find_seen_images(data, seconds=-1.0)
    assert found.not_kept
    assert found.overlap(data.train).sentence is not None
    assert load_bundle(save(tmp_path / "b", found)).seen_images.not_kept == found.not_kept
