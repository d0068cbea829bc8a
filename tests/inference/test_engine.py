"""An engine answers what the paper's equations say, of bytes, and refuses what it cannot answer for."""

import numpy as np
import pytest
import torch

from support.numpy_vit import NumpyViT
from support.tiny_models import random_model
from support.tiny_networks import tiny_bundle
from vitreous import UserError, ViT
from vitreous.config.data import Preprocess
from vitreous.errors import DamagedModelError
from vitreous.inference.engine import Engine, TorchEngine
from vitreous.inference.opening import open_engine
from vitreous.model.network import check_numbers, evaluating

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def preprocess_of(model):
    return Preprocess(size=model.config.image_size, mean=MEAN, std=STD)


def random_images(model, count=3):
    shape = (count, model.config.channels, *model.config.image_size)
    return torch.from_numpy(np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8))


def test_logits_and_representations_are_the_papers():
    """By the equations in NumPy and float64, of (x/255 - mean) / std."""
    model = random_model()
    images = random_images(model)
    engine: Engine = TorchEngine(model, preprocess_of(model))
    exact = (images.numpy() / 255 - np.reshape(MEAN, (3, 1, 1))) / np.reshape(STD, (3, 1, 1))
    truth = NumpyViT(model.config, model.state_dict())
    logits = engine.logits(images)
    assert logits.dtype == torch.float32
    np.testing.assert_allclose(logits.numpy(), truth(exact), atol=1e-4)
    weight, bias = model.head.weight.detach().numpy(), model.head.bias.detach().numpy()
    found = engine.representations(images).numpy()
    assert found.shape == (3, model.config.width)
    np.testing.assert_allclose(found @ weight.T + bias, truth(exact), atol=1e-4)


def test_the_network_answers_in_evaluation_mode_and_is_left_as_it_was():
    model = random_model(dropout=0.5)
    model.train()
    model.blocks[0].eval()  # as someone who trains a part only
    before = {name: module.training for name, module in model.named_modules()}
    engine, images = TorchEngine(model, preprocess_of(model)), random_images(model)
    first, second = engine.logits(images), engine.logits(images)
    assert torch.equal(first, second), "no dropout"
    assert {name: module.training for name, module in model.named_modules()} == before
    assert not first.requires_grad
    assert not engine.representations(images).requires_grad
    with pytest.raises(UserError):
        engine.logits(images[0])
    assert model.training


def test_whoever_is_done_first_leaves_the_others_in_evaluation_mode():
    """Several threads may ask an engine, and one that ends must not put dropout back into another's pass."""
    network = torch.nn.Sequential(torch.nn.Dropout(0.5), torch.nn.Dropout(0.5).eval())
    first, second = evaluating(network), evaluating(network)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert [module.training for module in network.modules()] == [False, False, False]
    second.__exit__(None, None, None)
    assert [module.training for module in network.modules()] == [True, True, False], "each as it was"


def test_a_twin_that_merges_tokens_is_left_in_evaluation_mode_too():
    """It shares its modules with the network, and a server asks both at once."""
    network = random_model(dropout=0.5).train()
    twin = network.with_merge(2)
    first, second = evaluating(network), evaluating(twin)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert not any(module.training for module in twin.modules())
    assert network.training, "nobody asks it any more"
    second.__exit__(None, None, None)
    assert all(module.training for one in (network, twin) for module in one.modules()), "each as it was"


def test_a_classifier_can_be_trained_on_representations():
    model = random_model()
    found = TorchEngine(model, preprocess_of(model)).representations(random_images(model))
    weight = torch.ones(1, model.config.width, requires_grad=True)
    torch.nn.functional.linear(found, weight).sum().backward()
    torch.testing.assert_close(weight.grad[0], found.sum(dim=0))


def test_it_knows_its_best_batch():
    model = ViT("Ti/16", seed=None)
    assert TorchEngine(model, preprocess_of(model)).batch_size == 16  # measured: docs/log.md


def test_images_of_another_kind_are_refused():
    model = random_model()
    engine, images = TorchEngine(model, preprocess_of(model)), random_images(model)
    height, width = model.config.image_size
    takes = rf"3, {height}, {width}\)"
    for wrong in (images.float(), images[0], images[:, :1], images[:, :, 1:], images.mT):
        for ask in (engine.logits, engine.representations):
            with pytest.raises(UserError, match=takes) as error:
                ask(wrong)
            assert str(tuple(wrong.shape)) in str(error.value)


def test_a_model_without_classifier_has_representations_only(tmp_path):
    model = random_model(classes=0)
    engine = TorchEngine(model, preprocess_of(model), path=tmp_path / "m")
    assert engine.representations(random_images(model)).shape == (3, model.config.width)
    with pytest.raises(UserError, match=r"/m: "):
        engine.logits(random_images(model))


def test_answers_that_are_not_numbers_are_refused_by_name(tmp_path):
    for value in (float("nan"), float("inf")):
        model = random_model()
        engine = TorchEngine(model, preprocess_of(model), path=tmp_path / "damaged")
        with torch.no_grad():
            model.head.bias[1] = value
        engine.representations(random_images(model))
        with pytest.raises(DamagedModelError, match="/damaged: "):
            engine.logits(random_images(model))
        with torch.no_grad():
            model.cls_token.fill_(value)
        with pytest.raises(DamagedModelError, match="/damaged: "):
            engine.representations(random_images(model))
        with pytest.raises(DamagedModelError, match="the model: "):
            check_numbers(torch.tensor([1.0, value]), "maps")


def test_products_in_bfloat16_and_float16(subtests):
    """By autocast, as on an accelerator; the digits that are lost are those of the type."""
    bundle = tiny_bundle()
    images = random_images(bundle.model, 6)
    exact = TorchEngine(bundle.model, bundle.preprocess).logits(images)
    for precision, kind in (("bf16", torch.bfloat16), ("fp16", torch.float16)):
        with subtests.test(precision):
            model = open_engine(bundle, precision=precision)
            assert model.computed_by == f"torch-{precision}"
            found = model.engine.logits(images)
            assert found.dtype == torch.float32
            error = ((found - exact).abs().max() / exact.abs().max()).item()
            assert 0.01 * torch.finfo(kind).eps < error < 20 * torch.finfo(kind).eps
            assert model.identity != open_engine(bundle).identity, "features of one are not those of the other"
    with pytest.raises(UserError, match="torch"):
        open_engine(bundle, engine="openvino", precision="bf16")
