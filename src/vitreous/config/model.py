"""What networks are made of: what every family's configuration says, and that of the Vision Transformer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import Field, asdict, dataclass, fields, replace
from difflib import get_close_matches
from numbers import Integral
from typing import Annotated, Any, ClassVar, Literal, Self

from vitreous.arguments import Count, Range, Rate, TokenMerge, check_fields, checked
from vitreous.config.presets import PRESETS, hybrid_name, preset_fields
from vitreous.config.rope import Rope
from vitreous.config.stem import Depth, Stem
from vitreous.config.vit_check import check_image_size, check_vit
from vitreous.config.vit_text import describe_vit, vit_architecture
from vitreous.errors import UserError

Attention = Literal["full", "neighbourhood", "axial"]
Position = Literal["learned-1d", "learned-2d", "sincos-2d", "relative", "none"]
PositionScope = Literal["all", "class", "patches"]
Resampling = Literal["bicubic", "bicubic-plain", "bilinear"]
NormPlace = Literal["before", "after"]
Mlp = Literal["gelu", "gelu-tanh", "quick-gelu", "relu", "swiglu"]
QkvBias = Literal["all", "q+v", "none"]
Pool = Literal["class", "mean", "class+mean", "attention"]
Classifier = Literal["linear", "mlp"]


class ModelConfig(ABC):
    """What the configuration of every network says: a frozen dataclass derives from this, one for each family."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    family: ClassVar[str]  # the name of the family in `vitreous.model.family.FAMILIES`, kept in bundles
    family_title: ClassVar[str]  # as a person says it: "Vision Transformer"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}  # fields by name, as `vitreous models` lists them
    has_patches: ClassVar[bool] = False  # whether patches of images can be exchanged between images, and labelled

    image_size: tuple[int, int]  # height and width of the images it is made for
    channels: int
    classes: int  # the classifier's outputs; 0 for no classifier: the network then returns the representation

    def __repr__(self) -> str:
        """The fields that differ from their defaults."""
        given = ((one.name, getattr(self, one.name), one.default) for one in fields(self))
        shown = ", ".join(f"{name}={value!r}" for name, value, default in given if value != default)
        return f"{type(self).__name__}({shown})"

    @property
    @abstractmethod
    def features(self) -> int:
        """The length of the representation."""

    @property
    @abstractmethod
    def layers(self) -> int:
        """How many layers can be frozen one by one."""

    @classmethod
    def preset(cls, name: str, **overrides: Any) -> Self:
        """The configuration called `name`, with these fields changed."""
        given, known = cls.preset_fields(name), [field.name for field in fields(cls)]
        if unknown := sorted(set(overrides) - set(known)):
            near = get_close_matches(unknown[0], known, n=1)
            like = f"did you mean {near[0]!r}?" if near else f"choose from {', '.join(sorted(known))}."
            raise UserError(f"model {name!r} has no field {unknown[0]!r}; {like}")
        return cls(**{**given, **overrides})

    @classmethod
    def preset_fields(cls, name: str) -> Mapping[str, Any]:
        return cls.presets[name]

    def for_size(self, size: tuple[int, int]) -> Self:
        """That of the same network for images (height, width) of another size."""
        return replace(self, image_size=size)

    def for_classes(self, classes: int) -> Self:
        """With a new classifier of so many outputs, or with 0 none."""
        return replace(self, classes=classes)

    def check_size(self, size: tuple[int, int]) -> None:
        """Refuse images (height, width) of a size that the network cannot look at."""
        if min(size) < 1:
            raise UserError(f"image_size {size[0]}x{size[1]}: an image has at least one pixel.")

    @property
    def can_checkpoint(self) -> bool:
        """Whether its layers' activations can be computed once more in the backward pass."""
        return False

    def title(self) -> str:
        """As a person says it, after an article: "Vision Transformer", "hybrid R26+S/32"."""
        return self.family_title

    def describe(self) -> str:
        """The title and the numbers that fix the size: "ViT of width 192, depth 12, patch 16"."""
        found = ", ".join(
            f"{name.replace('_', ' ')} {value:g}"
            for name, value in self._own_fields().items()
            if isinstance(value, int | float)
        )
        return f"{self.family_title} of {found}" if found else self.family_title

    def architecture(self) -> dict[str, str]:
        """What the network is made of, for reports."""
        own = {name.replace("_", " ").capitalize(): str(value) for name, value in self._own_fields().items()}
        return self._with_ends({**own, "Features": f"{self.features:,}"})

    def input_text(self) -> str:
        """ "224×224 pixels, 3 channels"."""
        colours = "grey" if self.channels == 1 else f"{self.channels} channels"
        return f"{self.image_size[0]}×{self.image_size[1]} pixels, {colours}"

    def _own_fields(self) -> dict[str, Any]:
        return {
            name: value for name, value in asdict(self).items() if name not in ("image_size", "channels", "classes")
        }

    def _with_ends(self, rows: Mapping[str, str]) -> dict[str, str]:
        """Rows of `architecture` between what goes in and what comes out."""
        classes = f"{self.classes:,}" if self.classes else "none: it gives representations"
        return {"Input": self.input_text(), **rows, "Classes": classes}


def model_to_json(config: ModelConfig) -> dict[str, Any]:
    """Its fields and its family, for `json.dumps`; `vitreous.model.family.config_from_json` reads them back."""
    return {"family": config.family, **asdict(config)}


def with_article(text: str) -> str:
    """ "A Vision Transformer", "An EfficientNet"."""
    return f"{'An' if text[0] in 'AEIOU' else 'A'} {text}"


@dataclass(frozen=True, repr=False)
class ViTConfig(ModelConfig):
    """Everything that fixes a Vision Transformer's shape and function.

    The defaults are the paper's. `preset("B/16")` fills in the sizes.
    """

    family: ClassVar[str] = "vit"
    family_title: ClassVar[str] = "Vision Transformer"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = PRESETS
    has_patches: ClassVar[bool] = True

    width: Count  # D, the length of a token
    depth: Depth  # L, the number of blocks
    heads: Count
    mlp_width: Count  # hidden units of each block's MLP; for SwiGLU, the number of gated units
    patch: Count  # P, the side of a square patch in pixels; of a hybrid, of what one token stands for
    image_size: tuple[int, int] = (224, 224)
    """Height and width the position embeddings belong to; other sizes are resampled on the fly."""
    channels: Count = 3
    classes: Annotated[int, Range(0)] = 1000
    """K, the classifier's outputs; 0 for no classifier: the model then returns the representation y."""

    stem: Stem | None = None
    """What looks at the pixels first: patches are then cut from its feature map (a hybrid); None for pixels."""
    position: Position = "learned-1d"
    position_scope: PositionScope = "all"
    """Which tokens a learned 1-D table has entries for: all, all but registers (DINOv2), or patches."""
    position_resampling: Resampling = "bicubic"
    """How a table moves to another grid: bicubic with antialias or without, or bilinear between fixed corners (the
    paper's)."""
    sincos_grid: tuple[int, int] | None = None
    """Rows and columns that fixed positions count cells on, when it is not the grid of `image_size`: after a resize."""
    rope: Rope | None = None
    """Rotary positions of queries and keys, beside `position`, or alone with position="none"; None for none."""
    norm: NormPlace = "before"
    """LayerNorm before each branch (ViT), or after each sum as in the original Transformer, then with no final norm."""
    norm_eps: Annotated[float, Range(1e-30, 1)] = 1e-6
    norm_pre: bool = False  # one more LayerNorm, of the tokens that enter the first block (CLIP)
    patch_bias: bool = True  # whether the patch projection has a bias
    qkv_bias: QkvBias = "all"
    """Which have biases: queries, keys and values, or queries and values alone (BEiT, DINOv3), or none."""
    mlp: Mlp = "gelu"
    mlp_norm: bool = False  # LayerNorm before the MLP's second layer (EVA-02)
    attention_norm: bool = False  # LayerNorm before the attention's output projection (EVA-02's CLIP)
    class_token: bool = True
    distilled: bool = False  # a second such token with a classifier of its own; scores are the mean of the two (DeiT)
    registers: Annotated[int, Range(0)] = 0  # extra learned tokens that no output reads (Darcet et al.)
    pool: Pool = "class"
    """What y is made of: the class token, the mean of the patch tokens, both side by side (DINOv2's classifiers), or a
    learned query that attends to the patches."""
    pool_prefix: bool = False  # whether attention pooling reads class and register tokens too (Perception Encoder)
    pool_heads: Count | None = None  # of attention pooling, if other than those of the blocks
    pool_mlp_width: Count | None = None  # and the hidden units of its MLP
    final_norm: bool = True  # whether there is a norm after the last block (InternViT has none)
    norm_after_pool: bool = False
    """Apply the final norm to the pooled vector instead of to the tokens (MAE's fine-tuning, timm's average)."""
    classifier: Classifier = "linear"
    """One linear layer (fine-tuning), or one tanh hidden layer before it (the paper's pre-training)."""
    projection: Annotated[int, Range(0)] = 0
    """Outputs of a projection of y into the space of a text encoder (CLIP), in place of a classifier; 0 for none."""
    layer_scale: float | None = None  # initial value of a learned per-channel scale of each branch; None for no scale
    qk_norm: bool = False  # LayerNorm on each head's queries and keys
    attention: Attention = "full"
    """What a patch attends to: all patches, those in a square around it, or in turn its row and its column. The class
    token and its like attend to all tokens, and all to them."""
    window: Count | None = None
    """Side of that square in patches, odd: a neighbourhood of 7 reaches 3 patches far. Cut at the image's borders."""
    merge: TokenMerge = 0
    """R of token merging (ToMe): every second block merges 2 R patch tokens into others like them; 0 for none. It needs
    no parameters, so any model can be given one, with or without training."""

    drop_path: Rate = 0.0
    """Stochastic depth: probability of skipping the last block's branches, growing linearly from 0 at the first."""
    dropout: Rate = 0.0
    patch_dropout: Rate = 0.0
    """Share of the patch tokens left out at random while training; the cost of a step falls with it."""
    pad: bool = False  # pad images at the right and bottom to a multiple of the patch instead of refusing them

    @property
    def grid(self) -> tuple[int, int]:
        return grid_of(self.image_size, self.patch)

    @property
    def kernel(self) -> tuple[int, int]:
        """What the patch projection reads: channels, and the side of a patch in pixels or places of a stem's map."""
        if self.stem is None:
            return self.channels, self.patch
        return self.stem.features, self.patch // self.stem.stride

    @property
    def patches(self) -> int:
        rows, columns = self.grid
        return rows * columns

    def resized(self, image_size: tuple[int, int], patch: int | None = None) -> ViTConfig:
        """The same model for images, or patches, of another size; fixed positions still count the cells of before."""
        sincos_grid = self.sincos_grid or (self.grid if self.position == "sincos-2d" else None)
        return replace(self, image_size=image_size, patch=patch or self.patch, sincos_grid=sincos_grid)

    @property
    def prefix(self) -> int:
        """Tokens before the patches: the class token, DeiT's distillation token, then the registers."""
        return int(self.class_token) + int(self.distilled) + self.registers

    @property
    def tokens_read(self) -> int | None:
        """How many of the first tokens y is made of; None for all of them."""
        return 1 + int(self.distilled) if self.pool == "class" else None

    def merges(self, patches: int) -> tuple[int, ...]:
        """How many of so many patch tokens each block merges: 2 R in every second one, or half of those that are left.

        The first sixth of the blocks merges none: there a token that is lost costs most. A pause after each merge lets
        fine-tuned models be right more often than R in every block, and half as many blocks look for pairs, which costs
        as much for few as for many (docs/merging.md). R counts for an image with all patches at `image_size`; of
        fewer, or more, the same share is merged. A last block that computes only the tokens read has none to merge.
        """
        most, left = (4 * self.merge * patches + self.patches) // (2 * self.patches), patches  # rounded, also if traced
        merging = range(self.depth // 6, self.depth, 2)
        counts: list[int] = []
        for layer in range(self.depth):
            counts.append(min(most, left // 2) if layer in merging else 0)
            left -= counts[-1]
        return tuple(counts) if self.tokens_read is None else (*counts[:-1], 0)

    @property
    def features(self) -> int:
        return 2 * self.width if self.pool == "class+mean" else self.width

    @property
    def layers(self) -> int:
        return self.depth

    @property
    def prefix_positions(self) -> int:
        """How many of the prefix tokens have an entry in a learned 1-D position table."""
        if self.position != "learned-1d":
            return 0
        return {"all": self.prefix, "class": self.prefix - self.registers, "patches": 0}[self.position_scope]

    def __post_init__(self) -> None:
        object.__setattr__(self, "image_size", as_size(self.image_size))
        check_fields(self)
        if min(self.image_size) < 1 or min(self.sincos_grid or (1,)) < 1:
            name = "image_size" if min(self.image_size) < 1 else "sincos_grid"
            raise UserError(f"{name}={getattr(self, name)}: must be at least 1 on both sides.")
        check_vit(self)

    @classmethod
    def preset_fields(cls, name: str) -> Mapping[str, Any]:
        return preset_fields(name)

    def for_size(self, size: tuple[int, int]) -> ViTConfig:
        return self.resized(size)

    def for_classes(self, classes: int) -> ViTConfig:
        return replace(self, classes=classes, classifier="linear", projection=0 if classes else self.projection)

    def check_size(self, size: tuple[int, int]) -> None:
        check_image_size(size, self.patch, self.pad)

    @property
    def can_checkpoint(self) -> bool:
        return not self.merge  # what a block merges would have to be kept with its input

    def title(self) -> str:
        name = None if self.stem is None else hybrid_name(self)
        return self.family_title if self.stem is None else f"hybrid {name}" if name else "hybrid"

    def describe(self) -> str:
        return describe_vit(self)

    def architecture(self) -> dict[str, str]:
        return self._with_ends(vit_architecture(self))


@checked
def preset(name: str, **overrides: Any) -> ViTConfig:
    """The configuration called `name`: size/patch, and @side or @heightxwidth unless 224; `overrides` set fields.

    A hybrid's name has its stem first: R, R26 or R50 for the published ResNets, C for light convolutions, as many as
    halve the side down to the patch.
    """
    return ViTConfig.preset(name, **overrides)


def as_size(given: object) -> object:
    """One side in pixels stands for a square: (224, 224) of 224; whatever else is given is left to be checked."""
    return (given, given) if isinstance(given, Integral) else given


def grid_of(size: tuple[int, int], patch: int) -> tuple[int, int]:
    """Rows and columns of patches in an image (height, width), padded if need be."""
    return -(-size[0] // patch), -(-size[1] // patch)
