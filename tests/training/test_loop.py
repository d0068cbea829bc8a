"""The loop: interrupted and not, the bits are the same; what goes wrong stops before it does harm."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

from support.fake_clock import fake_clock
from vitreous import ViT, ViTConfig
from vitreous.config.data import Augment, Preprocess
from vitreous.config.objective import Supervised as SupervisedConfig
from vitreous.config.train import Optimizer, Training
from vitreous.data.loader import Loader
from vitreous.data.packed import ArraySource
from vitreous.distributed.world import World
from vitreous.errors import MachineError
from vitreous.model.lora import add_lora
from vitreous.objectives.supervised import Classification, balance
from vitreous.training.checkpoint import load_newest
from vitreous.training.folder import training_from_json, training_to_json
from vitreous.training.loop import DivergedError, Loop
from vitreous.training.step import StepSchedule, train_step

MODEL = ViTConfig(
    width=16, depth=2, heads=2, mlp_width=32, patch=4, image_size=(8, 8), classes=3, channels=1, dropout=0.1,
    drop_path=0.1,
)  # fmt: skip
TRAINING = Training(
    model=MODEL,
    preprocess=Preprocess(size=(8, 8), mean=(0.5,), std=(0.5,)),
    augment=Augment(crop_scale=None, pad=1),
    objective=SupervisedConfig(keep_schedule=((0.5, 0.5),)),
    optimizer=Optimizer(name="muon", learning_rate=1e-2),
    batch_size=8,
    ema=0.9,
    evaluations=3,
)
STEPS = 14  # of 5 in an epoch


def random_images(count=40):
    """Bright at the top, in the middle or at the bottom."""
    draw = np.random.default_rng(0)
    labels = np.arange(count) % 3
    images = draw.integers(0, 60, (count, 1, 8, 8))
    for image, label in zip(images, labels, strict=True):
        image[:, 3 * label : 3 * label + 2] += 150
    return ArraySource("made", torch.from_numpy(images).to(torch.uint8), labels, ("top", "middle", "bottom"))


def make_loop(
    folder, training=TRAINING, steps=STEPS, workers=0, save_seconds=1e9, evaluate=True, schedule=None, check_clock=None
):
    source = random_images()
    training = replace(training, save_seconds=save_seconds)
    loader = Loader(
        source, training.preprocess, training.augment, batch_size=training.batch_size, workers=workers,
    )  # fmt: skip
    judge = Loader(source, training.preprocess, batch_size=40)
    model = ViT(training.model)
    if training.lora:
        add_lora(model, training.lora)

    def metrics(objective):
        batch = next(iter(judge.batches()))
        scores = objective.model(batch.images)
        right = (scores.argmax(1) == batch.targets).float().mean().item()
        return {"accuracy": right, "standard_error": 0.05, "loss": F.cross_entropy(scores, batch.targets).item()}

    folder.mkdir(exist_ok=True)
    return Loop(
        Classification(model, training.objective),
        loader,
        training,
        schedule or StepSchedule(steps),
        folder,
        evaluate=metrics if evaluate else None,
        check_clock=check_clock,
    )


def digest(folder):
    """Every tensor of the last checkpoint and every line of the metrics."""
    last = sorted((folder / "checkpoints").glob("step-*"))[-1]
    tensors = {file.name: load_file(file) for file in sorted(last.glob("*.safetensors"))}
    return tensors, (folder / "metrics.jsonl").read_text()


def assert_same(one, other):
    tensors, metrics = digest(one)
    others, other_metrics = digest(other)
    assert metrics == other_metrics
    assert tensors.keys() == others.keys()
    assert tensors.keys() == {f"{name}.safetensors" for name in ("module", "optimizers", "ema", "best")}
    for file, content in tensors.items():
        assert content.keys() == others[file].keys()
        assert all(torch.equal(tensor, others[file][name]) for name, tensor in content.items()), file


@pytest.mark.parametrize("optimizer", ["adamw", "sgd", "muon"])
def test_interrupted_and_taken_up_again_ends_with_the_same_bits(tmp_path, subtests, optimizer):
    training = replace(TRAINING, optimizer=Optimizer(name=optimizer, learning_rate=1e-2))
    assert make_loop(tmp_path / "whole", training).run().finished
    for stops in ((3,), (5,), (1, 8, 13)):
        parts = tmp_path / str(stops)
        with subtests.test(stops=stops):
            for stop in stops:
                loop = make_loop(parts, training)
                assert not loop.run(stop=lambda loop=loop, stop=stop: loop.step >= stop).finished
            outcome = make_loop(parts, training).run()
            assert outcome.finished
            assert outcome.images == STEPS * 8
            assert_same(tmp_path / "whole", parts)


def test_stages_count_over_interruptions(tmp_path):
    with fake_clock(step_seconds=0.5):
        loop = make_loop(tmp_path)
        loop.run(stop=lambda: loop.step >= 4)
        saved = load_newest(tmp_path / "checkpoints")[0].metadata["spent"]
        assert saved["stages"]["steps"] == pytest.approx(4 * 0.5, abs=0.1)
        again = make_loop(tmp_path)
        assert again.run().finished
        assert again.meter.spent().stages["steps"] == pytest.approx(STEPS * 0.5, abs=0.2)


def test_it_learns_and_keeps_the_best(tmp_path):
    training = replace(TRAINING, model=replace(MODEL, dropout=0.0, drop_path=0.0))
    outcome = make_loop(tmp_path, training, steps=60).run()
    assert outcome.best_metrics["accuracy"] > 0.9
    records = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [r["step"] for r in records if "loss" in r] == list(range(1, 61))
    judged = [r for r in records if "val_loss" in r]
    assert [r["step"] for r in judged] == [20, 40, 60]
    assert outcome.best_step == min(judged, key=lambda r: r["val_loss"])["step"]


def test_kept_is_the_lowest_loss_within_a_standard_error_of_the_highest_accuracy():
    evaluations = [(0.90, 1.0), (0.88, 0.9), (0.86, 0.5), (0.92, 0.95), (0.91, 0.8), (0.88, 0.1), (0.93, 0.7)]
    objective = Classification(ViT(MODEL), SupervisedConfig())
    best, history, kept = None, [], []
    for accuracy, loss in evaluations:
        new = {"accuracy": accuracy, "standard_error": 0.03, "loss": loss}
        history.append(new)
        if best is None or objective.is_better(new, best, history):
            best = new
        kept.append(best["loss"])
        highest = max(past["accuracy"] for past in history)
        near = [loss for accuracy, loss in evaluations[: len(kept)] if accuracy >= highest - 0.03]
        assert kept[-1] == min(near)
    assert kept == [1.0, 0.9, 0.9, 0.95, 0.8, 0.8, 0.7]


def test_without_validation_the_last_weights_are_kept(tmp_path):
    loop = make_loop(tmp_path, replace(TRAINING, ema=None), evaluate=False)
    outcome = loop.run()
    assert outcome.best_step == STEPS
    assert all(
        torch.equal(outcome.best["model"][name], tensor) for name, tensor in loop.objective.model.state_dict().items()
    )


def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used(tmp_path):
    make_loop(tmp_path / "whole").run()
    loop = make_loop(tmp_path / "hurt", save_seconds=0)
    loop.run(stop=lambda: loop.step >= 9)
    newest = sorted((tmp_path / "hurt" / "checkpoints").glob("step-*"))[-1]
    file = newest / "module.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    outcome = make_loop(tmp_path / "hurt").run()
    assert newest.name in outcome.remarks[0]
    assert_same(tmp_path / "whole", tmp_path / "hurt")


def test_what_a_killed_save_left_behind_is_forgotten(tmp_path):
    loop = make_loop(tmp_path, save_seconds=0)
    loop.run(stop=lambda: loop.step >= 4)
    partial = tmp_path / "checkpoints" / ".step-00000099.new"
    partial.mkdir()
    (partial / "module.safetensors").write_bytes(b"half")
    with (tmp_path / "metrics.jsonl").open("a") as log:
        log.write('{"step": 5, "loss": 1.0}\n{"step": 6, "lo')  # a crash in the middle of a line
    make_loop(tmp_path).run()
    assert not partial.exists()
    steps = [json.loads(line)["step"] for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert sorted(steps) == steps
    assert len([step for step in steps if step == 5]) == 2  # its training record and its evaluation


def test_a_full_disk_loses_nothing_that_was_saved(tmp_path, monkeypatch):
    loop = make_loop(tmp_path, save_seconds=0)
    loop.run(stop=lambda: loop.step >= 4)
    before = load_newest(tmp_path / "checkpoints")[0]

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("vitreous.training.checkpoint.save_file", full)
    with pytest.raises(MachineError, match="checkpoints"):
        make_loop(tmp_path, save_seconds=0).run()
    monkeypatch.undo()
    after = load_newest(tmp_path / "checkpoints")[0]
    assert after.step == before.step
    assert make_loop(tmp_path).run().finished


def test_a_loss_that_is_no_number_stops_before_the_step(tmp_path):
    loop = make_loop(tmp_path, save_seconds=0)
    objective = loop.objective
    forward = type(objective).forward

    def spoiled(batch, progress):
        loss, metrics = forward(objective, batch, progress)
        return (loss * float("nan") if loop.step == 6 else loss), metrics

    objective.forward = spoiled
    weights = {}

    def remember(event):
        weights.update({name: tensor.clone() for name, tensor in loop.objective.model.state_dict().items()})

    with pytest.raises(DivergedError, match=r"step 7: .* nan .*made#\d+, made#\d+"):
        loop.run(remember)
    assert all(torch.equal(weights[name], tensor) for name, tensor in loop.objective.model.state_dict().items())
    assert load_newest(tmp_path / "checkpoints")[0].step == 6


@pytest.mark.parametrize("spoiled", ["metrics", "weights"])
def test_a_training_that_diverged_says_so(tmp_path, spoiled):
    """Not that weights are damaged: after the last step no loss is there to tell."""
    loop = make_loop(tmp_path, evaluate=spoiled == "metrics")

    def spoil(event):
        if event.step == STEPS - 1 and spoiled == "weights":
            loop.training = replace(loop.training, ema=None)
            loop.ema = None
            train = loop._train_step

            def last(batch, totals):
                record = train(batch, totals)
                next(loop.objective.parameters()).data.fill_(float("nan"))
                return record

            loop._train_step = last

    if spoiled == "metrics":
        loop.evaluate = lambda objective: {"accuracy": 0.3, "standard_error": 0.1, "loss": float("nan")}
    with pytest.raises(DivergedError, match=r"step \d+: "):
        loop.run(spoil)


def test_validation_on_an_accelerator_computes_as_training_does(tmp_path, monkeypatch):
    """In bfloat16 where that is fast; a processor validates in float32."""
    monkeypatch.setattr("vitreous.training.loop.precision", lambda device: torch.autocast("cpu", torch.bfloat16))
    loop, half = make_loop(tmp_path), []

    def evaluate(objective):
        half.append(torch.is_autocast_enabled("cpu"))
        return {"accuracy": 0.3, "standard_error": 0.1, "loss": 1.0}

    loop.evaluate = evaluate
    for device in ("cpu", "cuda"):
        loop.world = World(device=torch.device(device))
        loop._evaluate()
    assert half == [False, True]


def test_parts_of_a_batch_have_the_gradient_of_the_whole(tmp_path):
    """With a keep schedule and stochastic depth: what is random follows from the samples, not from the parts."""
    plain = replace(TRAINING, model=replace(MODEL, dropout=0.0, drop_path=0.3), batch_size=7)
    gradients = []
    for micro_batch in (None, 3):
        loop = make_loop(tmp_path, replace(plain, micro_batch=micro_batch))
        found = {}

        def refuse(loss, norm, loop=loop, found=found):
            found.update({name: p.grad.clone() for name, p in loop.objective.named_parameters() if p.grad is not None})
            found["loss"] = torch.tensor(loss)

        train_step(loop.learner, next(iter(loop.loader.batches(0))), 0, 0.1, 0.2, refuse)
        gradients.append(found)
    assert len(gradients[0]) > 10
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradient, gradients[1][name], atol=1e-6, rtol=1e-4)


def test_the_average_follows_the_weights(tmp_path):
    loop = make_loop(tmp_path)
    expected = {name: p.detach().clone() for name, p in loop.objective.model.named_parameters()}

    def follow(event):
        decay = min(0.9, (1 + event.step) / (10 + event.step))
        for name, p in loop.objective.model.named_parameters():
            expected[name] = decay * expected[name] + (1 - decay) * p.detach()

    loop.run(follow)
    for name, average in loop.ema.model.named_parameters():
        torch.testing.assert_close(average, expected[name], atol=1e-6, rtol=1e-5)


def test_low_rank_training_changes_only_what_it_should_and_folds_in(tmp_path):
    from vitreous.model.lora import merge_lora

    training = replace(TRAINING, lora=2, optimizer=Optimizer(learning_rate=1e-2))
    loop = make_loop(tmp_path, training)
    before = merge_lora(loop.objective.model.state_dict())
    outcome = loop.run()
    after = merge_lora(outcome.best["model"])
    assert after.keys() == ViT(MODEL).state_dict().keys()
    changed = {name for name in after if not torch.equal(after[name], before[name])}
    assert changed == {"head.weight", "head.bias", "blocks.0.attn.qkv.weight", "blocks.1.attn.qkv.weight"}
    plain = ViT(MODEL).eval()
    plain.load_state_dict(merge_lora(loop.objective.model.state_dict()))
    images = torch.randn(2, 1, 8, 8)
    torch.testing.assert_close(plain(images), loop.objective.model.eval()(images), atol=1e-5, rtol=0)


def test_a_training_survives_json():
    text = json.dumps(training_to_json(TRAINING))
    assert training_from_json(json.loads(text), Path("config.json")) == TRAINING


def test_balanced_weights_make_classes_count_alike():
    labels = torch.tensor([0, 0, 0, 1])
    torch.testing.assert_close(balance(labels, 3), torch.tensor([4 / 6, 2.0, 0.0]))


def test_a_schedule_that_was_changed_by_the_clock_can_be_repeated(tmp_path):
    """Interrupted before a replanning that is written down, it replans there again, and ends with the same bits."""
    schedule = StepSchedule(STEPS)

    def hurry(step):
        if step == 6:
            schedule.replan(6, 11)

    assert make_loop(tmp_path / "whole", schedule=schedule, check_clock=hurry).run().finished
    assert schedule.steps == 11
    loop = make_loop(tmp_path / "parts", schedule=StepSchedule(STEPS, schedule.replans))
    assert not loop.run(stop=lambda: loop.step >= 4).finished
    outcome = make_loop(tmp_path / "parts", schedule=StepSchedule(STEPS, schedule.replans)).run()
    assert outcome.finished
    assert outcome.images == 11 * 8
    assert_same(tmp_path / "whole", tmp_path / "parts")


def test_the_result_lies_between_the_start_and_what_was_trained(tmp_path):
    whole = make_loop(tmp_path / "whole", evaluate=False)
    start = {name: tensor.clone() for name, tensor in whole.objective.model.state_dict().items()}
    trained = whole.run().best["model"]
    blended = make_loop(tmp_path / "blended", replace(TRAINING, wise_ft_alpha=0.25), evaluate=False).run().best["model"]
    for name, tensor in blended.items():
        assert torch.allclose(tensor, 0.75 * start[name] + 0.25 * trained[name], atol=1e-6), name
    assert any(not torch.equal(trained[name], blended[name]) for name in trained)


def test_a_blend_that_is_taken_up_again_remembers_its_start(tmp_path):
    training = replace(TRAINING, wise_ft_alpha=0.5)
    make_loop(tmp_path / "whole", training).run()
    loop = make_loop(tmp_path / "parts", training)
    loop.run(stop=lambda: loop.step >= 7)
    again = make_loop(tmp_path / "parts", training)
    with torch.no_grad():
        for parameter in again.objective.model.parameters():
            parameter.zero_()  # a classifier that was fitted before the first step is not fitted again
    again.start = {name: torch.zeros_like(tensor) for name, tensor in again.start.items()}
    again.run()
    assert_same(tmp_path / "whole", tmp_path / "parts")


def judged(loop, accuracies):
    """The loop with evaluations that say these accuracies, and a loss that always falls."""
    said = iter(enumerate(accuracies))

    def evaluate(objective):
        turn, accuracy = next(said)
        return {"accuracy": accuracy, "standard_error": 0.05, "loss": 1.0 - 0.1 * turn}

    loop.evaluate = evaluate
    return loop


ACCURACIES = {
    "all worse": ((0.95, 0.94, 0.93, 0.94), 0),
    "one as good": ((0.95, 0.94, 0.95, 0.94), 10),
    "last within the error of the best": ((0.95, 0.94, 0.96, 0.95), 14),
}


def test_what_is_worse_than_a_good_start_is_not_kept(tmp_path, subtests):
    """Though its loss is lower, and its accuracy within a standard error; without such a start that is enough."""
    training = replace(TRAINING, probe=True)
    for name, (accuracies, kept) in ACCURACIES.items():
        with subtests.test(name):
            outcome = judged(make_loop(tmp_path / f"good, {name}", training), accuracies).run()
            assert outcome.best_step == kept
            assert outcome.best_metrics["accuracy"] == max(0.95, outcome.best_metrics["accuracy"])
            assert judged(make_loop(tmp_path / f"any, {name}"), accuracies[1:]).run().best_step == 14


def test_no_steps_are_a_training_too(tmp_path):
    loop = make_loop(tmp_path / "none", replace(TRAINING, probe=True), steps=0)
    start = {name: tensor.clone() for name, tensor in loop.objective.model.state_dict().items()}
    for _ in range(2):  # begun, and taken up again
        outcome = loop.run()
        assert outcome.finished
        assert (outcome.steps, outcome.best_step, outcome.images) == (0, 0, 0)
        assert all(torch.equal(tensor, start[name]) for name, tensor in outcome.best["model"].items())
        loop = make_loop(tmp_path / "none", replace(TRAINING, probe=True), steps=0)
        with torch.no_grad():
            loop.objective.model.head.weight.add_(1)  # what is saved counts, not what this one began with
