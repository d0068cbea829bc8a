"""The model against the paper's equations in NumPy, and against itself compiled, exported, traced and cut short."""

import numpy as np
import pytest
import torch

from support.numpy_vit import NumpyViT
from support.variants import VARIANTS, random_images, random_model
from vitreous import Trace, UserError, ViT
from vitreous.model.layers import drop_branch


def test_model_and_trace_follow_the_equations(subtests):
    for name, changes in VARIANTS.items():
        with subtests.test(name):
            model = random_model(**changes)
            images, trace = random_images(model), Trace()
            reference = NumpyViT(model.config, model.state_dict())
            expected = reference(images.double().numpy())
            with torch.no_grad():
                np.testing.assert_allclose(model(images), expected, atol=1e-5, rtol=0)
                np.testing.assert_allclose(model(images, trace=trace), expected, atol=1e-5, rtol=0)
            assert sorted(trace.attention) == sorted(trace.tokens) == list(range(model.config.depth))
            for layer in trace.attention:  # the reference keeps the last image's
                np.testing.assert_allclose(trace.attention[layer][1], reference.attention[layer], atol=1e-5)
                np.testing.assert_allclose(trace.tokens[layer][1], reference.tokens[layer], atol=1e-5)
            assert trace.grid == model.config.grid
            assert trace.prefix == model.config.prefix
            if model.config.pool == "attention":
                heads = model.config.pool_heads or model.config.heads
                torch.testing.assert_close(trace.pool_attention.sum(-1), torch.ones(2, heads, 1))


def test_a_trace_records_the_chosen_layers_only():
    model = random_model(depth=3)
    trace = Trace(layers=[-1], tokens=False)
    model(random_images(model), trace=trace)
    assert list(trace.attention) == [2]
    assert trace.tokens == {}
    torch.testing.assert_close(trace.attention[2].sum(-1), torch.ones(2, 4, 13))


def test_a_layer_that_is_not_there_is_named():
    model = random_model()
    with pytest.raises(UserError, match=r"layer 7.* 0 .* 1"):
        model(random_images(model), trace=Trace(layers=[7]))


def test_a_trace_says_which_patches_were_looked_at():
    model = random_model()
    keep, trace = torch.tensor([[3, 1]]), Trace(layers=[0])
    model(random_images(model, count=1), keep_ids=keep, trace=trace)
    assert torch.equal(trace.keep_ids, keep)
    assert trace.tokens[0].shape[1] == 1 + 2


def test_pre_logits_are_what_the_classifier_reads():
    model = random_model(classifier="mlp")
    images, trace = random_images(model), Trace(layers=[])
    scores = model(images, trace=trace)
    torch.testing.assert_close(model.head(trace.pre_logits), scores)


def test_pre_logits_of_a_distilled_model_are_what_each_of_its_classifiers_reads():
    """DeiT's two classifiers read a token each, not the mean of the two; without them, the mean is what there is."""
    model = random_model(distilled=True)
    images, trace = random_images(model), Trace(layers=[])
    scores = model(images, trace=trace)
    own, second = model.head(trace.pre_logits), model.head_dist(trace.pre_logits_dist)
    torch.testing.assert_close((own + second) / 2, scores)
    assert not torch.allclose(own, scores, atol=1e-3)
    last = Trace(layers=[-1])
    model(images, trace=last)
    torch.testing.assert_close(trace.pre_logits, model.norm(last.tokens[1])[:, 0])
    torch.testing.assert_close(trace.pre_logits_dist, model.norm(last.tokens[1])[:, 1])

    bare = random_model(distilled=True, classes=0)
    y = bare(images, trace=trace)
    torch.testing.assert_close(trace.pre_logits, y)
    assert trace.pre_logits_dist is None


def test_gradients_reach_the_traced_attention():
    model = random_model()
    trace = Trace(tokens=False)
    score = model(random_images(model), trace=trace)[:, 0].sum()
    for gradient in torch.autograd.grad(score, list(trace.attention.values())):
        assert gradient.abs().max() > 0


def test_every_parameter_gets_a_gradient(subtests):
    for name, changes in VARIANTS.items():
        with subtests.test(name):
            model = random_model(**changes).train()
            model(random_images(model)).square().sum().backward()
            without = [name for name, p in model.named_parameters() if p.grad is None or not p.grad.abs().max() > 0]
            assert without == []


def test_a_chosen_part_of_the_patches_is_what_the_equations_say_of_that_part(subtests):
    for changes in [{}, {"position": "relative", "registers": 2}, {"position": "learned-2d"}]:
        with subtests.test(changes=changes):
            model = random_model(**changes)
            images = random_images(model)
            keep = torch.tensor([[0, 5, 11], [7, 2, 3]])
            expected = NumpyViT(model.config, model.state_dict())(images.double().numpy(), keep.numpy())
            with torch.no_grad():
                np.testing.assert_allclose(model(images, keep_ids=keep).numpy(), expected, atol=1e-5, rtol=0)


def test_patch_dropout_keeps_its_share_while_training_only():
    model = random_model(patch_dropout=0.75)
    images = random_images(model, count=64)
    whole, layout = model.embed(images)
    assert layout.keep_ids is None
    assert whole.shape[1] == 1 + 12
    part, layout = model.train().embed(images)
    assert part.shape[1] == 1 + 3
    assert all(len(set(row)) == 3 for row in layout.keep_ids.tolist())
    assert set(layout.keep_ids.flatten().tolist()) == set(range(12))


def test_stochastic_depth_skips_whole_branches_and_keeps_the_mean():
    model = random_model(depth=1, drop_path=0.5).train()
    block = model.blocks[0]
    assert block.drop_path == 0.0  # the first block always runs
    block.drop_path = 0.5
    branch = torch.ones(4000, 3, 2)
    out = drop_branch(branch, block.drop_path, None)
    assert set(out.flatten().tolist()) == {0.0, 2.0}
    assert (out == out[:, :1, :1]).all()
    assert out.mean().item() == pytest.approx(1.0, abs=0.07)


def test_dropout_acts_while_training_only():
    model = random_model(dropout=0.5)
    images = random_images(model)
    torch.testing.assert_close(model(images), model(images), atol=0, rtol=0)
    model.train()
    assert not torch.equal(model(images), model(images))


def test_reading_one_token_of_the_last_block_changes_neither_it_nor_the_gradients(subtests):
    for changes in [{}, {"norm": "after"}, {"position": "relative", "registers": 1, "qk_norm": True}]:
        with subtests.test(changes=changes):
            model = random_model(**changes)
            images = random_images(model)
            z, layout = model.embed(images)
            short = model.encode(z, layout, read=1)
            whole = model.encode(z, layout)
            assert short.shape[1] == 1
            torch.testing.assert_close(short, whole[:, :1], atol=1e-6, rtol=0)
            parameters = list(model.blocks.parameters())
            for a, b in zip(
                torch.autograd.grad(short.square().sum(), parameters, retain_graph=True),
                torch.autograd.grad(whole[:, :1].square().sum(), parameters),
                strict=True,
            ):
                torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("changes", [{}, {"position": "relative", "registers": 2, "pool": "attention"}], ids=str)
def test_compiled_equals_eager(changes):
    model = random_model(**changes)
    images = random_images(model)
    with torch.no_grad():
        torch.testing.assert_close(torch.compile(model)(images), model(images), atol=1e-5, rtol=0)


@pytest.mark.parametrize("changes", [{}, {"position": "relative"}, {"position": "sincos-2d", "pool": "mean"}], ids=str)
def test_exported_equals_eager_at_another_batch(changes):
    model = random_model(**changes)
    exported = torch.export.export(
        model, (random_images(model, count=3),), dynamic_shapes={"images": {0: torch.export.Dim("batch")}}
    )
    images = random_images(model, count=5)
    with torch.no_grad():
        torch.testing.assert_close(exported.module()(images), model(images), atol=1e-5, rtol=0)


def test_weights_are_a_function_of_the_seed_and_leave_the_global_state_alone():
    torch.manual_seed(1)
    before = torch.get_rng_state()
    one, again, other = ViT("N/4@32", seed=3), ViT("N/4@32", seed=3), ViT("N/4@32", seed=4)
    assert torch.equal(before, torch.get_rng_state())
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), again.parameters(), strict=True))
    assert not torch.equal(one.pos_embed, other.pos_embed)


def test_first_weights_are_those_of_the_papers_code():
    model = ViT("Ti/16", classes=10, classifier="mlp", registers=4)
    state = model.state_dict()
    assert state["head.weight"].abs().max() == 0
    assert state["cls_token"].abs().max() == 0
    assert state["pos_embed"].std().item() == pytest.approx(0.02, rel=0.02)
    assert state["patch_embed.proj.weight"].std().item() == pytest.approx((3 * 16 * 16) ** -0.5, rel=0.02)
    xavier = (6 / (192 + 192)) ** 0.5  # for q, k and v each, not for the three stacked
    assert state["blocks.5.attn.qkv.weight"].abs().max().item() == pytest.approx(xavier, rel=0.01)
    assert state["blocks.5.mlp.fc1.weight"].abs().max().item() == pytest.approx((6 / (192 + 768)) ** 0.5, rel=0.01)
    assert state["blocks.5.mlp.fc1.bias"].std().item() == pytest.approx(1e-6, rel=0.1)
    assert state["blocks.5.attn.qkv.bias"].abs().max() == 0


def test_channels_that_do_not_match_are_named():
    model = random_model()
    with pytest.raises(UserError, match=r"\(2, 1, 12, 16\).*\(B, 3, H, W\)"):
        model(torch.zeros(2, 1, 12, 16))


def test_a_size_that_the_patch_does_not_divide_is_refused_or_padded():
    with pytest.raises(UserError, match=r"12x15.* 15 .* 4.* 12 .* 16"):
        random_model()(torch.zeros(1, 3, 12, 15))
    padded = random_model(pad=True)
    image = torch.randn(1, 3, 12, 15)
    whole = torch.cat([image, torch.zeros(1, 3, 12, 1)], dim=3)
    torch.testing.assert_close(padded(image), padded(whole))
