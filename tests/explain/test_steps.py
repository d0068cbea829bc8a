"""Every number of `follow` against the paper's equations in NumPy, for every kind of model."""

from dataclasses import fields

import numpy as np
import pytest

from support.numpy_steps import expected_steps
from support.numpy_vit import NumpyViT, softmax
from support.variants import VARIANTS, random_images, random_model
from vitreous import UserError
from vitreous.explain.steps import Steps, follow


def test_every_quantity_is_the_paper_s(subtests):
    for name in VARIANTS:
        with subtests.test(name=name):
            model = random_model(**VARIANTS[name])
            c = model.config
            images = random_images(model, 1)
            for cell, layer, head in ((None, -1, 0), (1, 0, c.heads - 1)):
                found = follow(model, images, cell=cell, layer=layer, head=head)
                rows, columns = found.grid
                assert found.cell == (rows // 2 * columns + columns // 2 if cell is None else cell)
                assert found.query_token == (
                    0 if cell is None and c.pool.startswith("class") else c.prefix + found.cell
                )
                assert found.layer == layer % c.depth
                truth = expected_steps(
                    model, images[0].double().numpy(), found.cell, found.query_token, found.layer, head
                )
                compared = {field.name for field in fields(Steps)} - set(truth)
                assert compared == {"config", "grid", "cell", "layer", "head", "query_token", "pooled", "sinks"}
                for quantity, expected in truth.items():
                    shown = getattr(found, quantity)
                    if expected is None:
                        assert shown is None, quantity
                    else:
                        np.testing.assert_allclose(
                            shown, expected, atol=2e-4, rtol=2e-4, err_msg=f"{quantity}, cell {cell}"
                        )


def test_the_pooling_weights():
    model = random_model(pool="attention")
    images = random_images(model, 1)
    found = follow(model, images)
    truth = NumpyViT(model.config, model.state_dict())
    truth.image(images[0].double().numpy(), None)
    patches = truth.norm(truth.tokens[-1], "norm")[1:]
    q = truth.dense(truth.w["attn_pool.latent"][0, 0], "attn_pool.q")
    d = 16 // 4
    for h in range(4):
        k = truth.dense(patches, "attn_pool.kv")[:, h * d : (h + 1) * d]
        np.testing.assert_allclose(found.pooled[h], softmax(k @ q[h * d : (h + 1) * d] / np.sqrt(d)), atol=1e-5)


def test_what_the_model_does_not_have_is_refused():
    model = random_model()
    with pytest.raises(UserError, match=r"head 4.* 0 .* 3"):
        follow(model, random_images(model, 1), head=4)
    with pytest.raises(UserError, match=r"layer 2.* 0 .* 1"):
        follow(model, random_images(model, 1), layer=2)
