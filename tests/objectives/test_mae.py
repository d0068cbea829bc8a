"""The masked autoencoder against transformers' and against the paper's formulas written out in NumPy."""

import math
from itertools import product

import numpy as np
import pytest
import torch
from transformers import ViTMAEConfig, ViTMAEForPreTraining
from transformers.models.vit_mae.modeling_vit_mae import build_2d_sinusoidal_position_embedding

from vitreous import ViT, ViTConfig
from vitreous.config.objective import Mae
from vitreous.data.batch import Batch
from vitreous.objectives.collapse import explained
from vitreous.objectives.mae import MaskedAutoencoder, masked_loss, pixels_last, shuffle, unpatchify
from vitreous.objectives.objective import Setting

SIZES = [
    {"width": 24, "depth": 2, "heads": 3, "mlp_width": 40, "patch": 4, "image_size": (16, 16)},
    {"width": 32, "depth": 1, "heads": 4, "mlp_width": 64, "patch": 8, "image_size": (32, 32)},
    {"width": 16, "depth": 3, "heads": 2, "mlp_width": 16, "patch": 2, "image_size": (8, 8)},
]
SETTINGS = Mae(mask=0.75, decoder_width=16, decoder_depth=2, decoder_heads=4)


def build(size, settings=SETTINGS, **more):
    config = ViTConfig(**size, classes=0, position="sincos-2d", norm_eps=1e-6, **more)
    torch.manual_seed(0)
    objective = MaskedAutoencoder(ViT(config, seed=1), settings, Setting(seed=1))
    for parameter in objective.parameters():  # nothing may be hidden by a zero or a one
        parameter.data += 0.1 * torch.randn_like(parameter)
    return objective.eval()


def test_the_decoders_blocks_are_sharded_and_recomputed_as_the_encoders_are():
    objective = build(SIZES[0])
    assert objective.transformer_blocks() == [*objective.model.blocks, *objective.decoder.blocks]
    assert len(objective.transformer_blocks()) == SIZES[0]["depth"] + 2


def random_images(size, count=3):
    return torch.from_numpy(np.random.default_rng(0).normal(size=(count, 3, *size["image_size"]))).float()


def theirs(objective, size, normalise):
    """transformers' model with the same weights."""
    m = objective.settings
    config = ViTMAEConfig(
        hidden_size=size["width"], num_hidden_layers=size["depth"], num_attention_heads=size["heads"],
        intermediate_size=size["mlp_width"], image_size=size["image_size"][0], patch_size=size["patch"],
        layer_norm_eps=1e-6, decoder_hidden_size=m.decoder_width, decoder_num_hidden_layers=m.decoder_depth,
        decoder_num_attention_heads=m.decoder_heads, decoder_intermediate_size=4 * m.decoder_width,
        mask_ratio=m.mask, norm_pix_loss=normalise, attn_implementation="eager",
    )  # fmt: skip
    model = ViTMAEForPreTraining(config).eval()
    model.load_state_dict(renamed(objective, model.state_dict()))
    return model


def renamed(objective, known):
    """Our tensors under transformers' names; its fixed positions are its own."""
    ours, made = dict(objective.state_dict()), {}
    for name in ("vit.embeddings.position_embeddings", "decoder.decoder_pos_embed"):
        _, count, width = known[name].shape
        side = math.isqrt(count - 1)
        table = build_2d_sinusoidal_position_embedding(side, side, embed_dim=width, cls_token=True)
        made[name] = table.roll(width // 2, dims=1)[None]  # it has rows first, and public weights columns
    made["vit.embeddings.cls_token"] = ours["model.cls_token"]
    for kind in ("weight", "bias"):
        made[f"vit.embeddings.patch_embeddings.projection.{kind}"] = ours[f"model.patch_embed.proj.{kind}"]
        made[f"vit.layernorm.{kind}"] = ours[f"model.norm.{kind}"]
        for part in ("embed", "norm", "pred"):
            made[f"decoder.decoder_{part}.{kind}"] = ours[f"decoder.{part}.{kind}"]
    made["decoder.mask_token"] = ours["decoder.mask_token"]
    inner = {"norm1": "layernorm_before", "norm2": "layernorm_after", "attn.proj": "attention.o_proj",
             "mlp.fc1": "mlp.fc1", "mlp.fc2": "mlp.fc2"}  # fmt: skip
    for here, there, depth in (
        ("model.blocks", "vit.layers", len(objective.model.blocks)),
        ("decoder.blocks", "decoder.decoder_layers", len(objective.decoder.blocks)),
    ):
        for i in range(depth):
            for kind in ("weight", "bias"):
                for mine, their in inner.items():
                    made[f"{there}.{i}.{their}.{kind}"] = ours[f"{here}.{i}.{mine}.{kind}"]
                for part, their in zip(ours[f"{here}.{i}.attn.qkv.{kind}"].chunk(3), "qkv", strict=True):
                    made[f"{there}.{i}.attention.{their}_proj.{kind}"] = part
    assert made.keys() == known.keys(), sorted(made.keys() ^ known.keys())
    return made


def test_loss_and_reconstruction_are_those_of_transformers(subtests):
    for normalise, size in product((True, False), SIZES):
        with subtests.test(normalise=normalise, size=size):
            settings = Mae(mask=0.75, decoder_width=16, decoder_depth=2, decoder_heads=4, normalise=normalise)
            objective = build(size, settings)
            images = random_images(size)
            noise = torch.rand(3, objective.model.config.patches)
            keep, masked = shuffle(noise, settings.mask)
            with torch.no_grad():
                rebuilt, _ = objective.rebuild(images, keep, masked)
                loss = masked_loss(rebuilt, objective.targets(images, masked))
                expected = theirs(objective, size, normalise)(images, noise=noise)
            wanted = expected.logits.gather(1, masked[:, :, None].expand(-1, -1, expected.logits.shape[2]))
            torch.testing.assert_close(rebuilt, wanted, atol=1e-5, rtol=0)
            torch.testing.assert_close(loss, expected.loss, atol=1e-5, rtol=0)
            hidden = torch.zeros_like(noise).scatter(1, masked, 1.0)
            torch.testing.assert_close(hidden, expected.mask)


def numpy_loss(images, rebuilt, hidden, side, normalise):
    """Equation and text of the paper's section 3, image by image, patch by patch."""
    total, count = 0.0, 0
    for image, answer, hide in zip(images, rebuilt, hidden, strict=True):
        columns = image.shape[2] // side
        for place, cell in enumerate(np.flatnonzero(hide.ravel())):
            row, column = divmod(int(cell), columns)
            patch = image[:, row * side : (row + 1) * side, column * side : (column + 1) * side]
            truth = patch.transpose(1, 2, 0).ravel()
            if normalise:
                truth = (truth - truth.mean()) / np.sqrt(truth.var(ddof=1) + 1e-6)
            total += np.mean((answer[place] - truth) ** 2)
            count += 1
    return total / count


def test_the_loss_is_the_papers_formula(subtests):
    for normalise, size in product((True, False), SIZES):
        with subtests.test(normalise=normalise, size=size):
            settings = Mae(mask=0.6, decoder_width=8, decoder_depth=1, decoder_heads=2, normalise=normalise)
            objective = build(size, settings, class_token=False, pool="mean").double()
            images = random_images(size).double()
            keep, masked = shuffle(torch.rand(3, objective.model.config.patches), settings.mask)
            masked = masked.sort(dim=1).values
            with torch.no_grad():
                rebuilt, _ = objective.rebuild(images, keep, masked)
                loss = masked_loss(rebuilt, objective.targets(images, masked)).item()
            hidden = torch.zeros(3, objective.model.config.patches).scatter(1, masked, 1.0)
            wanted = numpy_loss(images.numpy(), rebuilt.numpy(), hidden.numpy(), size["patch"], normalise)
            assert abs(loss - wanted) <= 1e-6


def test_of_equal_random_numbers_the_first_patch_comes_first():
    """So masks are the same on every processor: fast sorts order equal numbers otherwise, each in its own way."""
    noise = torch.randint(4, (5, 64), generator=torch.Generator().manual_seed(0)).float()
    keep, masked = shuffle(noise, 0.75)
    assert (torch.cat([keep, masked], dim=1).numpy() == np.argsort(noise.numpy(), axis=1, kind="stable")).all()


def test_the_encoder_sees_a_quarter_and_the_rest_is_masked():
    keep, masked = shuffle(torch.rand(5, 64), 0.75)
    assert keep.shape == (5, 16)
    assert masked.shape == (5, 48)
    assert (torch.cat([keep, masked], dim=1).sort(dim=1).values == torch.arange(64)).all()
    assert len({tuple(row.tolist()) for row in keep}) == 5


def test_what_is_masked_has_no_influence_on_what_is_seen():
    objective = build(SIZES[0])
    images = random_images(SIZES[0])
    keep, masked = shuffle(torch.rand(3, 16), 0.75)
    patches, grid = objective.model.patchify(images)
    changed = patches.scatter_add(1, masked[:, :, None].expand(-1, -1, 48), torch.randn(3, 12, 48))
    others = unpatchify(pixels_last(changed, 3), grid, 4)
    assert not torch.equal(others, images)
    with torch.no_grad():
        one, _ = objective.rebuild(images, keep, masked)
        other, _ = objective.rebuild(others, keep, masked)
    torch.testing.assert_close(one, other, atol=1e-6, rtol=0)


def test_images_survive_being_cut_into_patches():
    objective = build(SIZES[1])
    images = random_images(SIZES[1])
    patches, grid = objective.model.patchify(images)
    assert torch.equal(unpatchify(pixels_last(patches, 3), grid, 8), images)


INDEX = torch.tensor([4, 9, 2])


def test_masks_follow_from_seed_epoch_and_image_alone():
    objective = build(SIZES[0])
    images = random_images(SIZES[0])
    batch = Batch.of(images, index=INDEX, seed=1)
    one, hidden = objective.reconstruct(batch)
    again, _ = objective.reconstruct(batch)
    assert torch.equal(one, again)
    alone, alone_hidden = objective.reconstruct(Batch.of(images[1:2], index=INDEX[1:2], seed=1))
    assert torch.equal(alone_hidden[0], hidden[1])
    torch.testing.assert_close(alone[0], one[1], atol=1e-5, rtol=0)
    assert torch.equal(objective(batch, 0.0)[0], objective(batch, 0.5)[0])
    assert not torch.equal(hidden[0], hidden[1])
    for other in ({"seed": 2}, {"seed": 1, "epoch": 1}):
        assert not torch.equal(objective.reconstruct(Batch.of(images, index=INDEX, **other))[1], hidden)


def test_no_cell_is_hidden_more_often_than_another():
    objective = build(SIZES[0])
    batch = Batch.of(torch.zeros(4000, 3, 16, 16), seed=7)
    _, masked = shuffle(objective.noise(batch), 0.75)
    shares = torch.bincount(masked.flatten(), minlength=16) / 4000
    assert (shares - 0.75).abs().max() < 5 * (0.75 * 0.25 / 4000) ** 0.5


def test_the_loss_of_a_batch_is_the_weighted_mean_of_its_parts():
    """And so are the gradients: masks and stochastic depth follow each image into its part."""
    images = random_images(SIZES[0], 10).double()
    found = {}
    for parts in (1, 3, 10):
        objective = build(SIZES[0], drop_path=0.5).double().train()
        batch = Batch.of(images, epoch=3)
        total = 0.0
        for part in batch.split(parts):
            loss, _ = objective(part, 0.3)
            share = objective.weigh(part) / objective.weigh(batch)
            (share * loss).backward()
            total += share * loss.item()
        found[parts] = total, torch.cat([p.grad.flatten() for p in objective.parameters()])
    for parts in (3, 10):
        assert found[parts][0] == pytest.approx(found[1][0], abs=1e-9)
        torch.testing.assert_close(found[parts][1], found[1][1], atol=1e-9, rtol=0)


def test_reconstruction_keeps_what_was_seen():
    objective = build(SIZES[0])
    images = random_images(SIZES[0])
    rebuilt, hidden = objective.reconstruct(Batch.of(images))
    pixels = hidden.repeat_interleave(4, 1).repeat_interleave(4, 2)[:, None].expand_as(images)
    assert torch.equal(rebuilt[~pixels], images[~pixels])
    assert (rebuilt[pixels] != images[pixels]).float().mean() > 0.99
    assert hidden.flatten(1).sum(1).tolist() == [12, 12, 12]


def test_saying_nothing_explains_nothing_whatever_the_images():
    """Normalised by the unbiased variance, n numbers have the mean square 1 - 1/n; flat patches have 0."""
    objective, images = build(SIZES[0]), random_images(SIZES[0])
    every = torch.arange(16).expand(3, 16)
    textured = objective.targets(images, every)
    silence = masked_loss(torch.zeros_like(textured), textured)
    assert silence.item() == pytest.approx(1 - 1 / 48, abs=1e-5)
    assert explained(silence, textured.var(correction=0)).item() == pytest.approx(0, abs=1e-5)
    assert explained(silence / 4, textured.var(correction=0)).item() == pytest.approx(0.75, abs=1e-5)
    assert explained(torch.tensor(2.0), textured.var(correction=0)) == 0
    images[:, :, :8] = 1.0  # half of each image
    half = objective.targets(images, every)
    silence = masked_loss(torch.zeros_like(half), half)
    assert silence.item() == pytest.approx((1 - 1 / 48) / 2, abs=1e-5)
    assert explained(silence, half.var(correction=0)).item() == pytest.approx(0, abs=1e-5)
    assert explained(torch.tensor(0.3), objective.targets(torch.full_like(images, 0.1), every).var(correction=0)) == 0


def trained(images, after=0, **more):
    """One forward pass in training: the loss, the metrics, and the random numbers that would come next."""
    objective = build(SIZES[0], drop_path=0.3, **more).train()
    for _ in range(after):
        objective.after_step(0.5)
    torch.manual_seed(5)
    loss, metrics = objective(Batch.of(images), 0.0)
    assert all(module.training for module in objective.modules())
    return loss.item(), metrics, torch.rand(3).tolist()


def test_equal_images_have_no_spread_though_their_masks_differ():
    different = random_images(SIZES[0], 40)
    for pool in ({}, {"class_token": False, "pool": "mean"}):
        assert trained(different[:1].expand(40, -1, -1, -1), **pool)[1]["feature_std"] < 1e-4
        assert trained(different, **pool)[1]["feature_std"] > 0.05


def test_measuring_the_spread_leaves_no_trace_in_the_training():
    images = random_images(SIZES[0], 8)
    with_it, without = trained(images, after=10), trained(images, after=11)
    assert "feature_std" in with_it[1]
    assert "feature_std" not in without[1]
    assert with_it[0] == without[0]
    assert with_it[2] == without[2]


def test_the_spread_is_measured_every_tenth_step():
    images = random_images(SIZES[0], 2)
    for step in (0, 1, 5, 10, 19, 20, 30, 47):
        assert ("feature_std" in trained(images, after=step)[1]) == (step % 10 == 0), step
    objective = build(SIZES[0]).eval()
    assert "feature_std" not in objective(Batch.of(images), 0.0)[1]


def test_a_step_count_is_part_of_what_a_checkpoint_keeps():
    objective, other = build(SIZES[0]), build(SIZES[0])
    for _ in range(7):
        objective.after_step(0.5)
    other.load_state_dict(objective.state_dict())
    assert other.taken.item() == 7
