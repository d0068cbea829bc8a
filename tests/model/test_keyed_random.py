"""Numbers that follow from keys: against SplitMix64 in Python's own integers, and what a ViT makes of them."""

import torch

from support.variants import random_images, random_model
from vitreous.model.keyed_random import fold, keyed_uniform
from vitreous.model.layers import drop_branch

WORD = 2**64


def mix(x):
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % WORD
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB % WORD
    return x ^ (x >> 31)


def splitmix(state, count):
    """The generator as its authors publish it: (count,) unsigned 64-bit numbers."""
    found = []
    for _ in range(count):
        state = (state + 0x9E3779B97F4A7C15) % WORD
        found.append(mix(state))
    return found


def expected(key, stream, count):
    state = splitmix((key % WORD) ^ (stream % WORD), 1)[0]
    return [(number >> 40) / 2**24 for number in splitmix(state, count)]


def test_the_truth_is_the_published_generator():
    """The first numbers of the reference program for the seed 1234567."""
    assert splitmix(1234567, 3) == [6457827717110365317, 3203168211198807973, 9817491932198370423]


KEYS = [0, 1, -1, 2**63 - 1, -(2**63), 123456789, -987654321987654321]


def test_draws_are_splitmix64(subtests):
    for stream in [0, 1, 13, 2**40, 2**63 + 5]:
        with subtests.test(stream=stream):
            found = keyed_uniform(torch.tensor(KEYS), stream, 7)
            assert found.dtype == torch.float32
            assert found.tolist() == [expected(key, stream, 7) for key in KEYS]


def test_folded_keys_are_those_of_other_samples():
    folded = fold(torch.tensor(KEYS), 3)
    assert [key % WORD for key in folded.tolist()] == [splitmix((key % WORD) ^ 3, 1)[0] for key in KEYS]
    assert not torch.equal(keyed_uniform(folded, 0, 4), keyed_uniform(torch.tensor(KEYS), 0, 4))


def test_a_row_depends_on_its_key_alone():
    keys = torch.arange(50)
    whole = keyed_uniform(keys, 2, 9)
    assert torch.equal(whole[17:18], keyed_uniform(keys[17:18], 2, 9))
    assert torch.equal(whole[:, :4], keyed_uniform(keys, 2, 4))


def test_numbers_of_neighbouring_keys_and_streams_are_spread_evenly():
    numbers = torch.cat([keyed_uniform(torch.arange(2000), stream, 5) for stream in range(4)])
    assert numbers.min() >= 0
    assert numbers.max() < 1
    counts = torch.histc(numbers, 20, 0, 1)
    assert ((counts - 2000) / 2000**0.5).abs().max() < 4.5
    correlation = torch.corrcoef(torch.stack([keyed_uniform(torch.arange(2000), s, 1)[:, 0] for s in range(6)]))
    assert (correlation - torch.eye(6)).abs().max() < 0.1


KEY = torch.tensor([5, 6, 7, 8])


def test_a_sample_meets_the_same_chance_in_any_batch(subtests):
    for changes in [{"drop_path": 0.5}, {"patch_dropout": 0.5}, {"drop_path": 0.4, "norm": "after"}]:
        with subtests.test(changes=changes):
            model = random_model(**changes).train()
            images = random_images(model, count=4)
            with torch.no_grad():
                whole = model(images, keys=KEY)
                torch.testing.assert_close(
                    torch.cat([model(images[:1], keys=KEY[:1]), model(images[1:], keys=KEY[1:])]), whole
                )
                torch.testing.assert_close(model(images, keys=KEY), whole, atol=0, rtol=0)
                assert not torch.allclose(model(images, keys=KEY + 100), whole)
                assert torch.equal(model.eval()(images, keys=KEY), model(images))


def test_patch_dropout_keeps_the_patches_with_the_least_numbers():
    model = random_model(patch_dropout=0.75).train()
    _, layout = model.embed(random_images(model, count=4), keys=KEY)
    for key, kept in zip(KEY.tolist(), layout.keep_ids.tolist(), strict=True):
        numbers = expected(key, 0, 12)
        assert kept == sorted(range(12), key=numbers.__getitem__)[:3]


def test_stochastic_depth_skips_a_branch_where_the_number_is_low():
    """Block 1 of 2 has the rate 0.6; its two branches have the two numbers of stream 2."""
    model = random_model(drop_path=0.6, pool="mean", layer_scale=0.1).train()
    keys = torch.arange(40)
    images = random_images(model, count=1).expand(40, -1, -1, -1)
    block = model.blocks[1]
    with torch.no_grad():
        found = model.representation(images, keys=keys)
        z, layout = model.embed(images[:1])
        z = model.blocks[0](z, layout)
        for key in keys.tolist():
            one, two = (0.0 if number < 0.6 else 1 / 0.4 for number in expected(key, 2, 2))
            middle = z + one * block.ls1(block.attn(block.norm1(z), layout))
            last = middle + two * block.ls2(block.mlp(block.norm2(middle)))
            torch.testing.assert_close(found[key], model.pool(model.norm(last))[0], atol=1e-5, rtol=1e-5)


def test_without_keys_torchs_generator_decides_as_ever():
    model = random_model(patch_dropout=0.5).train()
    images = random_images(model, count=3)
    torch.manual_seed(4)
    keep = torch.rand(3, 12).argsort(dim=1)[:, :6]
    after = torch.rand(1)
    torch.manual_seed(4)
    _, layout = model.embed(images)
    assert torch.equal(layout.keep_ids, keep)
    assert torch.equal(torch.rand(1), after)

    block = random_model(drop_path=0.5).train().blocks[1]
    torch.manual_seed(4)
    kept = torch.rand(64, 1, 1) >= 0.5
    torch.manual_seed(4)
    assert torch.equal(drop_branch(torch.ones(64, 1, 1), block.drop_path, None), kept * 2.0)
