"""What networks are made of: what every family's configuration says, and that of the Vision Transformer."""

from __future__ import annotations

from dataclasses import Field, asdict, dataclass, replace
from numbers import Integral
from typing import Annotated, Any, ClassVar, Literal, Protocol

from vitreous.arguments import Count, Merge, check_fields
from vitreous.config.stem import Depth, Stem
from vitreous.errors import UserError
from vitreous.wording import Range

Attention = Literal["full", "neighbourhood", "axial"]
Position = Literal["learned-1d", "learned-2d", "sincos-2d", "relative", "none"]
PositionScope = Literal["all", "class", "patches"]
Resampling = Literal["bicubic", "bicubic-plain", "bilinear"]
NormPlace = Literal["before", "after"]
Mlp = Literal["gelu", "relu", "swiglu"]
Pool = Literal["class", "mean", "class+mean", "attention"]
Classifier = Literal["linear", "mlp"]


class ModelConfig(Protocol):
    """What the configuration of every network says: a frozen dataclass of plain values, one for each family."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    family: ClassVar[str]
    """The name of the family in `vitreous.model.family.FAMILIES`, kept in bundles."""

    @property
    def image_size(self) -> tuple[int, int]:
        """Height and width of the images it is made for."""

    @property
    def channels(self) -> int:
        """Of an image."""

    @property
    def classes(self) -> int:
        """The classifier's outputs; 0 for no classifier: the network then returns the representation."""

    @property
    def features(self) -> int:
        """The length of the representation."""

    @property
    def layers(self) -> int:
        """How many layers can be frozen one by one."""


def model_to_json(config: ModelConfig) -> dict[str, Any]:
    """Its fields and its family, for `json.dumps`; `vitreous.model.family.config_from_json` reads them back."""
    return {"family": config.family, **asdict(config)}


@dataclass(frozen=True)
class ViTConfig:
    """Everything that fixes a Vision Transformer's shape and function.

    The defaults are the paper's. `vitreous.model.presets.preset("B/16")` fills in the sizes.
    """

    family: ClassVar[str] = "vit"

    width: Count
    """D, the length of a token."""
    depth: Depth
    """L, the number of blocks."""
    heads: Count
    mlp_width: Count
    """Hidden units of each block's MLP; for SwiGLU, the number of gated units."""
    patch: Count
    """P, the side of a square patch in pixels; of a hybrid, of what one token stands for."""
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
    norm: NormPlace = "before"
    """LayerNorm before each branch (ViT), or after each sum as in the original Transformer, then with no final norm."""
    norm_eps: Annotated[float, Range(1e-30, 1)] = 1e-6
    mlp: Mlp = "gelu"
    class_token: bool = True
    distilled: bool = False
    """A second such token with a classifier of its own; scores are the mean of the two (DeiT)."""
    registers: Annotated[int, Range(0)] = 0
    """Extra learned tokens that no output reads (Darcet et al.)."""
    pool: Pool = "class"
    """What y is made of: the class token, the mean of the patch tokens, both side by side (DINOv2's classifiers), or a
    learned query that attends to the patches."""
    norm_after_pool: bool = False
    """Apply the final norm to the pooled vector instead of to the tokens (MAE's fine-tuning, timm's average)."""
    classifier: Classifier = "linear"
    """One linear layer (fine-tuning), or one tanh hidden layer before it (the paper's pre-training)."""
    layer_scale: float | None = None
    """Initial value of a learned per-channel scale of each branch; None for no scale."""
    qk_norm: bool = False
    """LayerNorm on each head's queries and keys."""
    attention: Attention = "full"
    """What a patch attends to: all patches, those in a square around it, or in turn its row and its column. The class
    token and its like attend to all tokens, and all to them."""
    window: Count | None = None
    """Side of that square in patches, odd: a neighbourhood of 7 reaches 3 patches far. Cut at the image's borders."""
    merge: Merge = 0
    """R of token merging (ToMe): every second block merges 2 R patch tokens into others like them; 0 for none. It needs
    no parameters, so any model can be given one, with or without training."""

    drop_path: float = 0.0
    """Stochastic depth: probability of skipping the last block's branches, growing linearly from 0 at the first."""
    dropout: float = 0.0
    patch_dropout: float = 0.0
    """Share of the patch tokens left out at random while training; the cost of a step falls with it."""
    pad: bool = False
    """Pad images at the right and bottom to a multiple of the patch instead of refusing them."""

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of patches at `image_size`."""
        return grid_of(self.image_size, self.patch)

    @property
    def kernel(self) -> tuple[int, int]:
        """What the patch projection reads: channels, and the side of a patch in pixels or places of a stem's map."""
        if self.stem is None:
            return self.channels, self.patch
        return self.stem.features, self.patch // self.stem.stride

    @property
    def patches(self) -> int:
        """N, the number of patch tokens at `image_size`."""
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
        """The length of y."""
        return 2 * self.width if self.pool == "class+mean" else self.width

    @property
    def layers(self) -> int:
        """How many layers can be frozen one by one: the blocks."""
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
        for name in ("drop_path", "dropout", "patch_dropout"):
            if not 0 <= getattr(self, name) < 1:
                raise UserError(f"{name}={getattr(self, name)}: must be at least 0 and below 1.")
        if min(self.image_size) < 1 or min(self.sincos_grid or (1,)) < 1:
            name = "image_size" if min(self.image_size) < 1 else "sincos_grid"
            raise UserError(f"{name}={getattr(self, name)}: must be at least 1 on both sides.")
        self._check_combinations()

    def _check_combinations(self) -> None:
        if self.width % self.heads:
            nearby = range(max(1, self.heads - 1000), min(self.heads + 1000, self.width) + 1)
            fitting = [heads for heads in nearby if self.width % heads == 0] or [1]
            best = min(fitting, key=lambda heads: abs(heads - self.heads))
            raise UserError(f"heads={self.heads}: does not divide width={self.width}; {best} does.")
        if self.pool.startswith("class") and not self.class_token:
            raise UserError(
                f"pool={self.pool!r}: there is no class token to read; set class_token=True, or pool to 'mean' or "
                "'attention'."
            )
        if self.position == "sincos-2d" and self.width % 4:
            raise UserError(
                f"position='sincos-2d': needs a width divisible by 4, not {self.width}; {_nearest(self.width, 4)}."
            )
        if self.position == "learned-2d" and self.width % 2:
            raise UserError(f"position='learned-2d': needs an even width, not {self.width}; {_nearest(self.width, 2)}.")
        if self.norm == "after" and self.norm_after_pool:
            raise UserError("norm_after_pool=True: norm='after' has no final norm to move; set one of them back.")
        if self.pool == "class+mean" and self.norm_after_pool:
            raise UserError("norm_after_pool=True: pool='class+mean' has two vectors, not one; set one of them back.")
        if self.distilled and (self.pool != "class" or self.norm_after_pool or self.classifier != "linear"):
            raise UserError(
                "distilled=True: both classifiers read a token each; it needs pool='class', classifier='linear' and "
                "norm_after_pool=False."
            )
        if self.classifier == "mlp" and not self.classes:
            raise UserError(
                "classifier='mlp': there is none with classes=0; give the number of classes, or classifier='linear'."
            )
        self._check_window()
        self._check_merge()
        self._check_stem()
        check_image_size(self.image_size, self.patch, self.pad)

    def _check_window(self) -> None:
        if self.attention != "neighbourhood":
            if self.window is not None:
                raise UserError(
                    f"window={self.window}: only attention='neighbourhood' has one; set it, or leave the window out."
                )
        elif self.window is None or self.window % 2 == 0:
            raise UserError(
                f"window={self.window}: attention='neighbourhood' needs the side of the square around each patch, an "
                "odd number of patches; give 3, 5, 7 or another."
            )

    def _check_merge(self) -> None:
        if self.merge and self.attention != "full":
            raise UserError(
                f"merge={self.merge}: a merged token has no single place, and attention={self.attention!r} needs one; "
                "set merge=0, or attention='full'."
            )
        if self.merge and self.position == "relative":
            raise UserError(
                f"merge={self.merge}: a merged token has no single place, and position='relative' compares places in "
                "every block; set merge=0, or another position."
            )

    def _check_stem(self) -> None:
        if self.stem is None:
            return
        if self.patch % self.stem.stride:
            raise UserError(
                f"patch={self.patch}: the stem halves the image down to 1/{self.stem.stride} of its side, so a patch "
                f"has a multiple of {self.stem.stride} pixels; {_nearest(self.patch, self.stem.stride)}."
            )
        if self.patch_dropout:
            raise UserError(
                f"patch_dropout={self.patch_dropout}: the stem looks at all patches at once, so none can be left out; "
                "set it to 0, or use a model without a stem."
            )


def as_size(given: object) -> object:
    """One side in pixels stands for a square: (224, 224) of 224; whatever else is given is left to be checked."""
    return (given, given) if isinstance(given, Integral) else given


def grid_of(size: tuple[int, int], patch: int) -> tuple[int, int]:
    """Rows and columns of patches in an image (height, width), padded if need be."""
    return -(-size[0] // patch), -(-size[1] // patch)


def check_image_size(size: tuple[int, int], patch: int, pad: bool) -> None:
    """Refuse a (height, width) that the patch does not divide, unless images are padded."""
    if min(size) < 1:
        raise UserError(f"image_size {size[0]}x{size[1]}: an image has at least one pixel; the patch is {patch}.")
    if pad:
        return
    for name, side in zip(("height", "width"), size, strict=True):
        if side % patch:
            raise UserError(
                f"image_size {size[0]}x{size[1]}: the {name} {side} is not a multiple of the patch {patch}; "
                f"{_nearest(side, patch)}, or set pad=True."
            )


def _nearest(value: int, step: int) -> str:
    below, above = value // step * step, (value // step + 1) * step
    return f"the nearest that work are {below} and {above}" if below else f"the smallest that works is {above}"
