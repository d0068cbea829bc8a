"""What a family of networks says of itself: one row of the table in `vitreous.model.family`.

Few fields are needed; what is left out is found by looking at a network, built without memory for its weights.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from vitreous.config.model import ModelConfig
from vitreous.errors import UserError

if TYPE_CHECKING:  # torch takes a second to import, and what a model costs is asked without it
    from torch import Tensor, nn

    from vitreous.model.network import Network, Role

    State = dict[str, Tensor]

Size = tuple[int, int]
"""Height and width of an image in pixels."""


def _same_state(state: State, config: Any, size: Size) -> State:
    """Of a network whose weights fit images of any size."""
    return state


def _other_size(config: Any, size: Size) -> Any:
    return replace(config, image_size=size)


def _other_classes(config: Any, classes: int) -> Any:
    return replace(config, classes=classes)


def _any_size(config: Any, size: Size) -> None:
    if min(size) < 1:
        raise UserError(f"image_size {size[0]}x{size[1]}: an image has at least one pixel.")


def _no_layers(network: Any) -> list[nn.Linear]:
    return []


@dataclass(frozen=True)
class Family:
    """How networks of a family are built, counted, resized and described, and what their parameters are.

    `config` in the functions below is one of the family's own configurations, `network` one of its networks.
    """

    name: str
    """As a person says it: "Vision Transformer"."""
    config: type[Any]
    """A frozen dataclass that keeps `vitreous.config.model.ModelConfig`."""
    build: Callable[[Any, int | None], Network]
    """(config, seed): the network, its weights drawn from the seed alone; None: left undefined, to be loaded."""
    classifiers: Callable[[Any], Sequence[nn.Linear]]
    """(network): the last layers, whose mean is the score; none without a classifier."""
    roles: Callable[[Any], dict[str, Role]]
    """(network): what each parameter is, by name; `vitreous.model.roles.module_roles` helps."""

    preset: Callable[..., Any] | None = None
    """(name, **changes): the configuration of that name."""
    names: tuple[str, ...] = ()
    """The presets that `vitreous models` lists."""

    parameters: Callable[[Any], int] | None = None
    """(config): learned numbers."""
    flops: Callable[[Any, float], int] | None = None
    """(config, keep): floating-point operations of one image's forward pass with this share of its patches."""
    activation_bytes: Callable[[Any], int] | None = None
    """(config): bytes that a float32 training step keeps of one image for the backward pass."""
    forward_bytes: Callable[[Any], int] | None = None
    """(config): bytes of one image that a forward pass needs at once where no gradient is wanted."""
    inference_batch: Callable[[Any], int] | None = None
    """(config): how many images at once are fastest where no gradient is needed."""

    for_size: Callable[[Any, Size], Any] = _other_size
    """(config, size): the configuration of the same network for images of another size."""
    resize: Callable[[State, Any, Size], State] = _same_state
    """(state, config, size): the tensors that belong to that configuration."""
    for_classes: Callable[[Any, int], Any] = _other_classes
    """(config, classes): the configuration with a new classifier of so many outputs, or with 0 none."""
    check_size: Callable[[Any, Size], None] = _any_size
    """(config, size): refuse images of a size that the network cannot look at."""
    lora_targets: Callable[[Any], Sequence[nn.Linear]] = _no_layers
    """(network): the layers that a low-rank change is learned for."""

    title: Callable[[Any], str] | None = None
    """(config): as a person says it, where that is not the family's name for all: "hybrid R26+S/32"."""
    describe: Callable[[Any], str] | None = None
    """(config): "ViT of width 192, depth 12, patch 16"."""
    facts: Callable[[Any], dict[str, str]] | None = None
    """(config): what it is made of, for reports."""


def check_whole(config: ModelConfig, keep: float) -> None:
    """Refuse to count a network that has no patches as if some of them were left out."""
    if keep != 1.0:
        raise UserError(f"keep={keep}: one of the family {config.family!r} leaves no patches out; give 1.")


def preset_of(config: type[Any], presets: Mapping[str, Mapping[str, Any]]) -> Callable[..., Any]:
    """(name, **changes) to a configuration, for a family whose sizes are a table from names to fields."""
    known = {field.name for field in fields(config)}

    def preset(name: str, **changes: Any) -> Any:
        if unknown := sorted(set(changes) - known):
            near = get_close_matches(unknown[0], known, n=1)
            like = f"did you mean {near[0]!r}?" if near else f"choose from {', '.join(sorted(known))}."
            raise UserError(f"model {name!r} has no field {unknown[0]!r}; {like}")
        return config(**{**presets[name], **changes})

    return preset


_COMMON = ("image_size", "channels", "classes")


def plain_description(family: Family, config: ModelConfig) -> str:
    """The family's name and the numbers that fix a network's size: "ResNet of depth 50, width 1"."""
    numbers = {
        name: value for name, value in asdict(config).items() if name not in _COMMON and isinstance(value, int | float)
    }
    said = ", ".join(f"{name.replace('_', ' ')} {value:g}" for name, value in numbers.items())
    return f"{family.name} of {said}" if said else family.name


def plain_facts(config: ModelConfig) -> dict[str, str]:
    """Every field of a configuration, between what goes in and what comes out."""
    rest = {name: value for name, value in asdict(config).items() if name not in _COMMON}
    return {
        "Input": input_text(config),
        **{name.replace("_", " ").capitalize(): str(value) for name, value in rest.items()},
        "Features": f"{config.features:,}",
        "Classes": classes_text(config),
    }


def input_text(config: ModelConfig) -> str:
    """ "224×224 pixels, 3 channels"."""
    colours = "grey" if config.channels == 1 else f"{config.channels} channels"
    return f"{config.image_size[0]}×{config.image_size[1]} pixels, {colours}"


def classes_text(config: ModelConfig) -> str:
    """ "1,000", or that there are none."""
    return f"{config.classes:,}" if config.classes else "none: it gives representations"
