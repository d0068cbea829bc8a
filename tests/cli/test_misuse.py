"""Every verb with every option misused: one sentence that names the option, and nothing else happens.

The cases are made of the verbs' own signatures, so a new option is covered by itself.
"""

import pytest

from support.colours import make_bundle, make_pictures
from support.commands import MB, check_ended_well, check_refused
from vitreous.cli import VERBS, load_verb
from vitreous.cli.parsing import arguments_of
from vitreous.wording import Range

REQUIRED = {"--data": "nowhere", "--out": "out", "--to": "timm", "--models": "Ti/16"}
LONG = "x" * 5000
NUMBERS = {"text": "abc", "empty": "", "huge": str(10**30), "digits": "9" * 5000, "nan": "nan"}


def command(verb, left_out=""):
    """A verb with all that it needs, but that nothing is there; without one of its arguments, if so said."""
    words = []
    for argument in arguments_of(load_verb(verb)).values():
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
            return part.least if part.above is None else part.above + 1
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


def misuses():
    for verb in VERBS:
        for argument in arguments_of(load_verb(verb)).values():
            if argument.positional:
                if argument.required:
                    yield verb, "missing", command(verb, argument.name), []
                for case, value in {"empty": "", "long": LONG}.items():
                    words = command(verb)
                    place = [a.name for a in arguments_of(load_verb(verb)).values() if a.positional].index(
                        argument.name
                    )
                    place += len(verb.split())
                    words[place : place + 1] = [value]
                    yield verb, f"{argument.name} {case}", words, [argument.name]
                continue
            base = command(verb, argument.name)
            for case, value in wrong_values(argument).items():
                yield verb, f"{argument.name} {case}", [*base, argument.name, value], [argument.name]
            if argument.flag:
                yield verb, f"{argument.name} with a value", [*base, f"{argument.name}=maybe"], [argument.name]
            elif not argument.bare:
                yield verb, f"{argument.name} at the end", [*base, argument.name], [argument.name, "missing"]
            if not argument.repeats:
                given = [argument.name] if argument.flag else [argument.name, "1"]
                yield verb, f"{argument.name} twice", [*base, *given, *given], [argument.name, "twice"]
            short = argument.name[:-1]
            if len(argument.name) > 5:
                says = [f"{short}: {verb} has no such option", f"did you mean {argument.name}?"]
                yield verb, f"{argument.name} misspelt", [*base, f"{short}=1"], says
        yield verb, "unknown", [*command(verb), "--qqqqqqqq", "1"], ["--qqqqqqqq", f"`vitreous {verb} --help`"]
        yield verb, "unknown and long", [*command(verb), f"--{LONG}", "1"], [verb]


MISUSES = list(misuses())


@pytest.mark.parametrize(("words", "names"), [pytest.param(*one[2:], id=f"{one[0]} {one[1]}") for one in MISUSES])
def test_a_misuse_is_one_sentence(processes, words, names):
    outcome = processes(*words)
    check_refused(outcome, *names)
    assert len(outcome.stderr) < 1000


def test_there_are_many():
    assert len(MISUSES) > 300


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    return make_bundle(tmp_path_factory.mktemp("bundle") / "b")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_pictures(tmp_path_factory.mktemp("data") / "d", count=6)


@pytest.fixture(scope="module")
def others(tmp_path_factory):
    return make_pictures(tmp_path_factory.mktemp("others") / "o", count=2, seed=50)


TOO_MUCH = {
    "fit DATA --image-size 100000": "100000x100000",
    "fit DATA --model Ti/1@2000": "2000x2000",
    "fit DATA --model g/1@1000 --set batch_size=1": "1000x1000",
    "fit DATA --set model.width=300000000 --model Ti/16": "training",
    "fit DATA --set model.mlp_width=1000000000000": "training",
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


@pytest.mark.parametrize(("line", "names"), TOO_MUCH.items())
def test_what_cannot_fit_is_refused_with_both_numbers(processes, bundle, data, others, tmp_path, line, names):
    words = [{"MODEL": bundle, "DATA": data, "OTHERS": others}.get(word, word) for word in line.split()]
    outcome = processes(*words, cwd=tmp_path)
    check_refused(outcome, names)
    assert "needs about" in outcome.stderr
    assert "and there are" in outcome.stderr
    assert not list(tmp_path.glob("runs/*")), "a request that cannot be met leaves nothing behind"


@pytest.mark.parametrize(
    "line", ["predict MODEL DATA --batch-size 1000000000", "evaluate MODEL DATA --batch-size 99999"]
)
def test_a_batch_is_never_larger_than_the_data(processes, bundle, data, others, line):
    words = [{"MODEL": bundle, "DATA": data, "OTHERS": others}.get(word, word) for word in line.split()]
    outcome = processes(*words)
    check_ended_well(outcome, seconds=5, memory=400 * MB)
    assert outcome.status == 0


IDLE = {
    "fit DATA --preprocess crop=1": "preprocess",
    "fit DATA --model Ti/4@32 --image-size 16": "image_size=16",
    "fit DATA --budget 1m --epochs 3": "budget and epochs",
    "fit DATA --weights MODEL --model Ti/4": "model and weights",
    "fit DATA --set optimizer.momentum=0.5": "optimizer.momentum",
    "fit DATA --set augment.magnitude=3": "augment.magnitude",
    "fit DATA --set augment.crop_ratio=[0.5,2]": "augment.crop_ratio",
    "fit DATA --weights MODEL --set augment.pad=3": "augment.pad",
    "fit DATA --weights MODEL --set whiten=true": "whiten",
    "fit DATA --weights MODEL --set lora=2 --set wise_ft_alpha=0.5": "wise_ft_alpha",
    "fit DATA --distill MODEL --set objective.temperature=2": "objective.temperature",
    "fit DATA --set objective.answers=picture": "objective.answers",
    "fit DATA --set freeze=1 --set freeze=2": "freeze: set twice",
    "self-train DATA OTHERS --budget 1m --epochs 3": "budget and epochs",
    "self-train DATA OTHERS --weights MODEL --student Ti/4": "student and weights",
    "self-train DATA OTHERS --teacher MODEL --model Ti/4": "model and teacher",
    "self-train DATA OTHERS --preprocess crop=1": "preprocess",
    "pretrain DATA --set lora=3": "lora",
    "pretrain DATA --method dino --set objective.centre_momentum=0.5": "objective.centre_momentum",
    "pretrain DATA --method dino --set objective.ibot_mask=[0.1,0.2]": "objective.ibot_mask",
    "models Ti/4@32 --image-size 64": "image_size=64",
    "probe MODEL DATA --shots 1,2": "shots",
    "plot-weights MODEL --count 3": "count=3",
    "report MODEL --split test": "split='test'",
    "explain MODEL DATA --method rollout --head 1": "head 1",
    "explain MODEL DATA --method occlusion --layer 0": "layer 0",
    "explain MODEL DATA --method attention --class red": "class",
    "explain MODEL DATA --method gradcam --query 1,1": "query",
    "import MODEL out --heads 2 --entry teacher": "entry",
}


@pytest.mark.parametrize(("line", "names"), IDLE.items())
def test_an_option_that_would_do_nothing_is_refused(processes, bundle, data, others, tmp_path, line, names):
    words = [{"MODEL": bundle, "DATA": data, "OTHERS": others}.get(word, word) for word in line.split()]
    check_refused(processes(*words, cwd=tmp_path), names)


MISLEADING = {
    "fit DATA --budget 5": "such as 90s, 5m or 1h30m",
    "fit DATA --budget 1h1h": "budget '1h1h'",
    "fit DATA --budget 5m1h": "budget '5m1h'",
    "fit DATA --epochs 0": "--epochs 0",
    "self-train DATA OTHERS --rounds 0": "--rounds 0: give a whole number from 1 to 100.",
    "self-train DATA OTHERS --confidence 2": "--confidence 2.0: give a number from 0 to 1.",
    "self-train DATA DATA": "nothing to label; give other pictures.",
    "predict MODEL DATA --top 0": "--top 0: give a whole number of at least 1.",
    "evaluate MODEL DATA --workers -1": "--workers -1: give a whole number of at least 0, or leave it out.",
    "probe MODEL DATA --seed -1": "--seed -1",
    "fit DATA --set model.heads=999999937 --model Ti/16": "model.heads",
    "fit DATA --set model.depth=100000 --model Ti/16": "from 1 to 10,000",
    "fit DATA --distill nowhere": "nowhere",
    "fit DATA --distill DATA": "no weights in it",
    "fit builtin --distill MODEL": "does not know the class",
    "fit DATA --distill MODEL --set objective.weight=nan": "objective.weight",
    "fit DATA --distill MODEL --set objective.weight=2": "weight",
    "fit DATA --distill MODEL --set model.pool=mean": "distilled=True",
    "fit DATA --token-labels nowhere": "nowhere",
    "fit DATA --token-labels DATA": "no weights in it",
    "fit builtin --token-labels MODEL": "does not know the class",
    "fit DATA --token-labels MODEL --distill MODEL": "distill and token_labels",
    "fit DATA --token-labels MODEL --model efficientnet-b0": "needs a model with patches",
    "fit DATA --token-labels MODEL --set objective.token_weight=0": "token_weight",
    "fit DATA --token-labels MODEL --set objective.token_weight=nan": "token_weight",
    "fit DATA --token-labels MODEL --set objective.top=0": "top",
    "fit DATA --set objective.top=3": "objective.top",
    "fit DATA --model efficientnet-b0 --set augment.mixtoken=1": "mixtoken",
    "fit DATA --set": "--set: a value is missing",
    "fit DATA --set =": "NAME=VALUE",
    "fit DATA extra": "extra: one word too many",
    "explain MODEL DATA --query 1": "--query 1",
    "explain MODEL DATA --query nan,inf": "query",
    "explain MODEL DATA --layer 1e5": "--layer 1e5",
    "probe MODEL DATA --protocol fewshot --shots 0": "shots",
    "predict MODEL DATA --preprocess crop=1e-300": "crop=1e-300",
    "predict MODEL DATA --preprocess mean=nan": "mean",
    "predict MODEL DATA --preprocess size=-5": "size=",
    "predict MODEL DATA --embed": "--embed: this is for answers in files; say where with --out DIR",
    "predict MODEL DATA --part 1/2": "--part: this is for answers in files",
    "predict MODEL DATA --ray": "--ray: this is for answers in files",
    "predict MODEL DATA --out answers --part 3/2": "give a share i/n of the work",
    "predict MODEL DATA --out answers --part 1/0": "give a share i/n of the work",
    "predict MODEL DATA --out answers --part 1e9/1e9": "give a share i/n of the work",
    "predict MODEL DATA --out DATA": "is not empty",
    "predict MODEL nowhere --out answers": "nowhere",
    "predict nowhere DATA --out answers": "nowhere",
    "predict MODEL DATA --out answers --ray a b": "give at most one address",
    "models --gpus 8": "gpus and memory belong together",
    "models --gpus 0 --memory 80GB": "--gpus 0: give a whole number of at least 1",
    "models --gpus 8 --memory eighty": "memory='eighty'",
    "models --gpus 8 --memory -1GB": "memory",
    "models --batch-size 8": "give gpus and memory too",
}


@pytest.mark.parametrize(("line", "says"), MISLEADING.items())
def test_a_sentence_is_about_what_is_wrong(processes, bundle, data, others, tmp_path, line, says):
    words = [{"MODEL": bundle, "DATA": data, "OTHERS": others}.get(word, word) for word in line.split()]
    check_refused(processes(*words, cwd=tmp_path), says)
