"""Every number of `follow` against the paper's equations in NumPy, for every kind of model."""

from dataclasses import fields

import numpy as np
import pytest
from model.numpy_vit import NumpyViT, softmax
from model.variants import VARIANTS, random_images, random_model

from vitreous import UserError
from vitreous.explain.steps import Steps, follow


def expected_steps(model, image, cell, asker, layer, head):
    """The fields of `Steps` from the state dict alone, in float64."""
    c = model.config
    truth = NumpyViT(c, model.state_dict())
    answer = truth.picture(image, None)
    w, p, d = truth.w, c.patch, c.width // c.heads
    padded = np.pad(image, ((0, 0), (0, -image.shape[1] % p), (0, -image.shape[2] % p)))
    row, column = divmod(cell, truth.columns)
    patch = padded[:, row * p : (row + 1) * p, column * p : (column + 1) * p]
    E = w["patch_embed.proj.weight"].reshape(c.width, -1)
    z0 = truth.embed(image, None)
    projected = E @ patch.reshape(-1) + w["patch_embed.proj.bias"]
    z = z0 if layer == 0 else truth.tokens[layer - 1]
    name = f"blocks.{layer}"
    first = c.norm == "before"
    x = truth.norm(z, f"{name}.norm1") if first else z
    qkv = x @ w[f"{name}.attn.qkv.weight"].T + w[f"{name}.attn.qkv.bias"]
    q, k, v = (qkv[:, i * c.width + head * d : i * c.width + (head + 1) * d] for i in range(3))
    if c.qk_norm:
        q, k = truth.norm(q, f"{name}.attn.q_norm"), truth.norm(k, f"{name}.attn.k_norm")
    products = k @ q[asker]
    bias = None
    if c.position == "relative":
        bias = truth.relative(f"{name}.attn.rel_pos.relative_position_bias_table", head, None)[asker]
    scores = products / np.sqrt(d) + (0 if bias is None else bias)
    weights = np.exp(scores) / np.exp(scores).sum()
    attention = [one[:, asker] for one in truth.attention]  # a layer: (h, T)
    attended = w.get(f"{name}.ls1.gamma", 1) * truth.msa(x, f"{name}.attn", None)[asker]
    middle = z[asker] + attended if first else truth.norm(z[asker] + attended, f"{name}.norm1")
    mlp = w.get(f"{name}.ls2.gamma", 1) * truth.mlp(
        truth.norm(middle, f"{name}.norm2") if first else middle, f"{name}.mlp"
    )
    has_class_position = c.class_token and c.position == "learned-1d" and c.position_scope != "patches"
    return {
        "patch": patch,
        "projected": projected,
        "class_token": w["cls_token"][0, 0] if c.class_token else None,
        "class_position": w["pos_embed"][0, 0] if has_class_position else None,
        "position": None if c.position in ("none", "relative") else truth.cell_position(row, column),
        "token": z0[c.prefix + cell],
        "asker_token": z0[asker],
        "before": z[asker],
        "normed": x[asker],
        "query": q[asker],
        "keys": k,
        "values": v,
        "products": products,
        "bias": bias,
        "scores": scores,
        "weights": weights,
        "summed": sum(weight * value for weight, value in zip(weights, v, strict=True)),
        "heads": attention[layer],
        "attended": attended,
        "middle": middle,
        "mlp": mlp,
        "after": truth.tokens[layer][asker],
        "layers": np.stack([one.mean(0) for one in attention]),
        "logits": answer if c.classes else None,
        "chances": softmax(answer) if c.classes else None,
    }


@pytest.mark.parametrize("name", VARIANTS)
def test_every_quantity_is_the_paper_s(name):
    model = random_model(**VARIANTS[name])
    c = model.config
    images = random_images(model, 1)
    for cell, layer, head in ((None, -1, 0), (1, 0, c.heads - 1)):
        found = follow(model, images, cell=cell, layer=layer, head=head)
        rows, columns = found.grid
        assert found.cell == (rows // 2 * columns + columns // 2 if cell is None else cell)
        assert found.asker == (0 if cell is None and c.pool.startswith("class") else c.prefix + found.cell)
        assert found.layer == layer % c.depth
        truth = expected_steps(model, images[0].double().numpy(), found.cell, found.asker, found.layer, head)
        compared = {field.name for field in fields(Steps)} - set(truth)
        assert compared == {"config", "grid", "cell", "layer", "head", "asker", "pooled", "representation"}
        for quantity, expected in truth.items():
            shown = getattr(found, quantity)
            if expected is None:
                assert shown is None, quantity
            else:
                np.testing.assert_allclose(shown, expected, atol=2e-4, rtol=2e-4, err_msg=f"{quantity}, cell {cell}")


def test_the_representation_and_the_pooling_weights():
    model = random_model(pool="attention")
    images = random_images(model, 1)
    found = follow(model, images)
    truth = NumpyViT(model.config, model.state_dict())
    truth.picture(images[0].double().numpy(), None)
    patches = truth.norm(truth.tokens[-1], "norm")[1:]
    np.testing.assert_allclose(found.representation, truth.pool(np.concatenate([patches[:1], patches])), atol=1e-4)
    q = truth.dense(truth.w["attn_pool.latent"][0, 0], "attn_pool.q")
    d = 16 // 4
    for h in range(4):
        k = truth.dense(patches, "attn_pool.kv")[:, h * d : (h + 1) * d]
        np.testing.assert_allclose(found.pooled[h], softmax(k @ q[h * d : (h + 1) * d] / np.sqrt(d)), atol=1e-5)


def test_the_representation_is_the_class_token_s_last_norm():
    model = random_model()
    images = random_images(model, 1)
    truth = NumpyViT(model.config, model.state_dict())
    truth.picture(images[0].double().numpy(), None)
    np.testing.assert_allclose(follow(model, images).representation, truth.norm(truth.tokens[-1], "norm")[0], atol=1e-4)


def test_what_the_model_does_not_have_is_refused():
    model = random_model()
    with pytest.raises(UserError, match="head 4: the model has heads 0 to 3"):
        follow(model, random_images(model, 1), head=4)
    with pytest.raises(UserError, match="layer 2: the model has layers 0 to 1"):
        follow(model, random_images(model, 1), layer=2)
