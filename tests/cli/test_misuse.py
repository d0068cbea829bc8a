"""Every verb with every option misused: one sentence that names the option, and nothing else happens.

The cases are made of the verbs' own signatures, so a new option is covered by itself.
"""

import math
import re

import pytest

from support.colours import make_bundle, make_images
from support.commands import MB, check_ended_well, check_refused, run_command
from vitreous.arguments import Range
from vitreous.cli import load_verb, verb_table
from vitreous.cli.parsing import command_arguments

REQUIRED = {"--data": "nowhere", "--out": "out", "--to": "timm", "--models": "Ti/16"}
LONG = "x" * 5000
NUMBERS = {"text": "abc", "empty": "", "huge": str(10**30), "digits": "9" * 5000, "nan": "nan"}


def command(verb, left_out=""):
    """A verb with all that it needs, but that nothing is there; without one of its arguments, if so said."""
    words = []
    for argument in command_arguments(load_verb(verb)).values():
        if argument.required and argument.name != left_out:
            words += ["nowhere"] if argument.positional else [argument.name, REQUIRED[argument.name]]
    return [*verb.split(), *words]


def kinds(hint):
    """The plain types in an annotation."""
    inner = [kind for part in getattr(hint, "__args__", ()) for kind in kinds(part)]
    origin = getattr(hint, "__origin__", None)
    return [*(kinds(origin) if isinstance(origin, type) and not inner else []), *inner] or [hint]


def least(hint):
    """The least number that an annotation allows, if it says so."""
    for part in getattr(hint, "__metadata__", ()):
        if isinstance(part, Range):
            found = part.ge if part.gt is None else part.gt + 1
            return found if math.isfinite(found) else None
    inner = [least(part) for part in (*getattr(hint, "__args__", ()), getattr(hint, "__origin__", None)) if part]
    return next((one for one in inner if one is not None), None)


def wrong_values(argument):
    """What an option does not take, by a name for the case."""
    found = kinds(argument.hint)
    if argument.flag:
        return {}
    if int in found or float in found:
        values = dict(NUMBERS)
        if int in found:
            values |= {"fraction": "1.5"}
        else:
            values |= {"infinity": "inf", "minus infinity": "-inf"}
        if least(argument.hint) is not None:
            values["too small"] = str(int(least(argument.hint)) - 1)
        return values
    if str in found:
        return {"empty": "", "blank": " ", "long": LONG}
    return {"another word": "zzz", "empty": "", "long": LONG}


def misuses(verb):
    """(a name for the case, the command, what the sentence must name)."""
    arguments = command_arguments(load_verb(verb)).values()
    positional = [argument.name for argument in arguments if argument.positional]
    for argument in arguments:
        if argument.positional:
            if argument.required:
                yield f"{argument.name} missing", command(verb, argument.name), []
            for case, value in {"empty": "", "long": LONG}.items():
                words = command(verb)
                place = positional.index(argument.name) + len(verb.split())
                words[place : place + 1] = [value]
                yield f"{argument.name} {case}", words, [argument.name]
            continue
        base = command(verb, argument.name)
        for case, value in wrong_values(argument).items():
            yield f"{argument.name} {case}", [*base, argument.name, value], [argument.name]
        if argument.flag:
            yield f"{argument.name} with a value", [*base, f"{argument.name}=maybe"], [argument.name, "maybe"]
        else:
            yield f"{argument.name} at the end", [*base, argument.name], [argument.name]
        if not argument.repeats:
            given = [argument.name] if argument.flag else [argument.name, "1"]
            yield f"{argument.name} twice", [*base, *given, *given], [argument.name]
        if len(argument.name) > 5:
            short = argument.name[:-1]
            yield f"{argument.name} misspelt", [*base, f"{short}=1"], [f"{short}: ", argument.name]
    yield "unknown", [*command(verb), "--qqqqqqqq", "1"], ["--qqqqqqqq", f"`vitreous {verb} --help`"]
    yield "unknown and long", [*command(verb), f"--{LONG}", "1"], [verb]


@pytest.mark.parametrize("verb", verb_table())
def test_a_misuse_is_one_sentence(subtests, tmp_path, verb):
    cases = list(misuses(verb))
    assert len(cases) >= 7
    for case, words, names in cases:
        with subtests.test(case):
            outcome = run_command(*words, cwd=tmp_path)
            check_refused(outcome, *names)
            assert outcome.stdout == ""
            assert len(outcome.stderr) < 1000
    assert not list(tmp_path.iterdir()), "a misuse leaves nothing behind"


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    return make_bundle(tmp_path_factory.mktemp("bundle") / "b")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_images(tmp_path_factory.mktemp("data") / "d", count=6)


@pytest.fixture(scope="module")
def others(tmp_path_factory):
    return make_images(tmp_path_factory.mktemp("others") / "o", count=2, seed=50)


TOO_MUCH = {
    "fit DATA --image-size 100000": "100000x100000",
    "fit DATA --model Ti/1@2000": "2000x2000",
    "fit DATA --model g/1@1000 --overrides batch_size=1": "1000x1000",
    "fit DATA --overrides model.width=300000000 --model Ti/16": "224x224",
    "fit DATA --overrides model.mlp_width=1000000000000": "20x20",
    "fit DATA --weights MODEL --image-size 100000": "100000x100000",
    "self-train DATA OTHERS --image-size 100000": "100000x100000",
    "self-train DATA OTHERS --student Ti/1@2000": "2000x2000",
    "pretrain DATA --image-size 100000": "100000x100000",
    "pretrain DATA --method dino --image-size 100000": "100000x100000",
    "pretrain DATA --model B/1@4000": "4000x4000",
    "predict MODEL DATA --preprocess size=100000": "100000x100000",
    "predict MODEL DATA --preprocess size=100000 --batch-size 1": "100000x100000",
    "predict MODEL DATA --preprocess size=30000,crop=0.05": "30000x30000",
    "evaluate MODEL DATA --preprocess size=100000": "100000x100000",
    "probe MODEL DATA --preprocess size=100000": "100000x100000",
    "explain MODEL DATA --preprocess size=20000": "20000x20000",
    "explain MODEL DATA --preprocess size=100000 --method occlusion": "100000x100000",
    "walkthrough MODEL DATA --preprocess size=20000": "20000x20000",
    "plot-weights MODEL --data DATA --preprocess size=20000": "20000x20000",
    "score-explanations MODEL DATA --preprocess size=20000": "20000x20000",
    "analyze MODEL --data DATA --out a --preprocess size=20000": "20000x20000",
    "compare DATA --models Ti/16 --budget 9h --image-size 100000": "100000",
    "compare DATA --models Ti/1@2000 --budget 9h": "2000x2000",
    "analyze MODEL --data DATA --out a --what bias --preprocess size=20000": "20000x20000",
    "report MODEL --data DATA --preprocess size=100000": "100000x100000",
}


@pytest.fixture
def run_line(bundle, data, others, tmp_path):
    """Run a line in an empty folder, with files in place of MODEL, DATA and OTHERS; the outcome and that folder."""
    known = {"MODEL": bundle, "DATA": data, "OTHERS": others}

    def run(line):
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        folder.mkdir()
        return run_command(*(known.get(word, word) for word in line.split()), cwd=folder), folder

    return run


def test_what_cannot_fit_is_refused_with_both_numbers(subtests, run_line):
    for line, size in TOO_MUCH.items():
        with subtests.test(line):
            outcome, folder = run_line(line)
            check_refused(outcome, size)
            reason = outcome.stderr.rpartition(": ")[2]
            assert len(re.findall(r"\d[\d.,]*", reason)) == 2, "what is needed, and what there is"
            assert not list(folder.glob("runs/*")), "a request that cannot be met leaves nothing behind"


def test_a_batch_is_never_larger_than_the_data(subtests, run_line):
    for line in ("predict MODEL DATA --batch-size 1000000000", "evaluate MODEL DATA --batch-size 99999"):
        with subtests.test(line):
            outcome, _ = run_line(line)
            check_ended_well(outcome, seconds=5, memory=400 * MB)
            assert outcome.status == 0


IDLE = {
    "fit DATA --preprocess crop=1": "preprocess",
    "fit DATA --model Ti/4@32 --image-size 16": "image_size=16",
    "fit DATA --budget 1m --epochs 3": "budget, epochs",
    "fit DATA --weights MODEL --model Ti/4": "model, weights",
    "fit DATA --overrides optimizer.momentum=0.5": "optimizer.momentum, optimizer.name=sgd",
    "fit DATA --overrides augment.magnitude=3": "augment.magnitude, augment.policy=randaugment",
    "fit DATA --overrides augment.crop_ratio=[0.5,2]": "augment.crop_ratio, augment.crop_scale",
    "fit DATA --weights MODEL --overrides augment.pad=3": "augment.pad, augment.crop_scale=none",
    "fit DATA --weights MODEL --overrides whiten=true": "whiten",
    "fit DATA --weights MODEL --overrides lora=2 --overrides wise_ft_alpha=0.5": "wise_ft_alpha, lora=0",
    "fit DATA --distill MODEL --overrides objective.temperature=2": "objective.temperature, objective.targets=soft",
    "fit DATA --overrides objective.answers=image": "objective.answers",
    "fit DATA --overrides freeze=1 --overrides freeze=2": "freeze",
    "self-train DATA OTHERS --budget 1m --epochs 3": "budget, epochs",
    "self-train DATA OTHERS --weights MODEL --student Ti/4": "student, weights",
    "self-train DATA OTHERS --teacher MODEL --model Ti/4": "model, teacher",
    "self-train DATA OTHERS --preprocess crop=1": "preprocess",
    "pretrain DATA --overrides lora=3": "lora",
    "pretrain DATA --method dino --overrides objective.centre_momentum=0.5": "centre_momentum, sinkhorn_iterations=0",
    "pretrain DATA --method dino --overrides objective.ibot_mask=[0.1,0.2]": "ibot_mask, objective.ibot_weight",
    "models Ti/4@32 --image-size 64": "image_size=64",
    "probe MODEL DATA --shots 1,2": "shots",
    "plot-weights MODEL --count 3": "count=3",
    "report MODEL --split test": "split='test'",
    "explain MODEL DATA --method rollout --head 1": "head 1",
    "explain MODEL DATA --method occlusion --layer 0": "layer 0",
    "explain MODEL DATA --method attention --class red": "class",
    "explain MODEL DATA --method gradcam --query 1,1": "query",
    "import MODEL out --heads 2 --entry teacher": "entry='teacher'",
}


WRONG = {
    "fit DATA --budget 5": "budget '5', 1h30m",
    "fit DATA --budget 1h1h": "budget '1h1h'",
    "fit DATA --budget 5m1h": "budget '5m1h'",
    "fit DATA --epochs 0": "--epochs 0",
    "self-train DATA OTHERS --rounds 0": "--rounds 0, 1, 100",
    "self-train DATA OTHERS --confidence 2": "--confidence 2.0, 0, 1",
    "self-train DATA DATA": "DATA, 18",
    "predict MODEL DATA --top-k 0": "--top-k 0, 1",
    "evaluate MODEL DATA --workers -1": "--workers -1, 0",
    "probe MODEL DATA --seed -1": "--seed -1",
    "fit DATA --overrides model.heads=999999937 --model Ti/16": "model.heads=999999937, width=192",
    "fit DATA --overrides model.depth=100000 --model Ti/16": "model.depth=100000, 10,000",
    "fit DATA --distill nowhere": "nowhere",
    "fit DATA --distill DATA": "DATA",
    "fit builtin --distill MODEL": "MODEL, 'T-shirt or top'",
    "fit DATA --distill MODEL --overrides objective.weight=nan": "objective.weight",
    "fit DATA --distill MODEL --overrides objective.weight=2": "weight",
    "fit DATA --distill MODEL --overrides model.pool=mean": "distilled=True",
    "fit DATA --token-labels nowhere": "nowhere",
    "fit DATA --token-labels DATA": "DATA",
    "fit builtin --token-labels MODEL": "MODEL, 'T-shirt or top'",
    "fit DATA --token-labels MODEL --distill MODEL": "distill, token_labels",
    "fit DATA --token-labels MODEL --model efficientnet-b0": "token_labels, 'efficientnet'",
    "fit DATA --token-labels MODEL --overrides objective.token_weight=0": "token_weight",
    "fit DATA --token-labels MODEL --overrides objective.token_weight=nan": "token_weight",
    "fit DATA --token-labels MODEL --overrides objective.top=0": "top",
    "fit DATA --overrides objective.top=3": "objective.top",
    "fit DATA --model efficientnet-b0 --overrides augment.mixtoken=1": "mixtoken",
    "fit DATA --overrides": "--overrides",
    "fit DATA --overrides =": "'=', NAME=VALUE",
    "fit DATA extra": "extra, `vitreous fit --help`",
    "explain MODEL DATA --query 1": "--query 1",
    "explain MODEL DATA --query nan,inf": "query",
    "explain MODEL DATA --layer 1e5": "--layer 1e5",
    "probe MODEL DATA --protocol fewshot --shots 0": "shots",
    "predict MODEL DATA --preprocess crop=1e-300": "crop=1e-300",
    "predict MODEL DATA --preprocess mean=nan": "mean",
    "predict MODEL DATA --preprocess size=-5": "size=",
    "predict MODEL DATA --embed": "embed, out",
    "predict MODEL DATA --part 1/2": "part, out",
    "predict MODEL DATA --ray auto": "ray, out",
    "predict MODEL DATA --out answers --part 3/2": "part='3/2', 1/8",
    "predict MODEL DATA --out answers --part 1/0": "part='1/0', 1/8",
    "predict MODEL DATA --out answers --part 1e9/1e9": "part='1e9/1e9', 1/8",
    "predict MODEL DATA --out DATA": "DATA",
    "predict MODEL nowhere --out answers": "nowhere",
    "predict nowhere DATA --out answers": "nowhere",
    "predict MODEL DATA --out answers --ray": "--ray",
    "predict MODEL DATA --device cuda --engine openvino": "device, openvino",
    "models --gpus 8": "gpus=8, memory='80GB'",
    "models --gpus 0 --memory 80GB": "--gpus 0, 1",
    "models --gpus 8 --memory eighty": "memory='eighty'",
    "models --gpus 8 --memory -1GB": "memory",
    "models --batch-size 8": "batch_size, gpus, memory",
}


@pytest.mark.parametrize("lines", [IDLE, WRONG], ids=["options that would do nothing", "wrong values"])
def test_a_sentence_names_what_is_wrong(subtests, run_line, bundle, data, lines):
    for line, names in lines.items():
        with subtests.test(line):
            found = names.replace("MODEL", str(bundle)).replace("DATA", str(data))
            check_refused(run_line(line)[0], *found.split(", "))
