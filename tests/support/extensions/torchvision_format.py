"""A new checkpoint format: the state_dict of torchvision's VisionTransformer, both ways."""

from vitreous.config.model import ViTConfig
from vitreous.storage.files import new_folder, write_tensors
from vitreous.weights.checkpoint import ParsedCheckpoint, find_grid, heads_for_width, imagenet_preprocess
from vitreous.weights.formats import Format
from vitreous.weights.mapping import export_state, rename

LAYER = "encoder.layers.encoder_layer_"
NAMES = {
    "cls_token": "class_token",
    "pos_embed": "encoder.pos_embedding",
    "patch_embed.proj": "conv_proj",
    "blocks.*.norm1": LAYER + "{0}.ln_1",
    "blocks.*.attn.qkv.weight": LAYER + "{0}.self_attention.in_proj_weight",
    "blocks.*.attn.qkv.bias": LAYER + "{0}.self_attention.in_proj_bias",
    "blocks.*.attn.proj": LAYER + "{0}.self_attention.out_proj",
    "blocks.*.norm2": LAYER + "{0}.ln_2",
    "blocks.*.mlp.fc1": LAYER + "{0}.mlp.0",
    "blocks.*.mlp.fc2": LAYER + "{0}.mlp.3",
    "norm": "encoder.ln",
    "head": "heads.head",
}


def read(raw):
    if "encoder.pos_embedding" not in raw.tensors or "conv_proj.weight" not in raw.tensors:
        return None
    width, channels, patch, _ = raw.shape("conv_proj.weight", 4)
    grid = find_grid(raw.shape("encoder.pos_embedding", 3)[1] - 1, patch, raw.image_size)
    if grid is None:
        raise raw.unknown_grid(raw.shape("encoder.pos_embedding", 3)[1])
    config = ViTConfig(
        width=width,
        depth=raw.blocks(LAYER),
        heads=raw.heads or heads_for_width(width, raw.where),
        mlp_width=raw.shape(f"{LAYER}0.mlp.0.bias", 1)[0],
        patch=patch,
        image_size=(grid[0] * patch, grid[1] * patch),
        channels=channels,
        classes=raw.outputs("heads.head.bias"),
    )
    return ParsedCheckpoint("torchvision", config, rename(NAMES), imagenet_preprocess(config))


def write(out, model, preprocess, labels, info):
    with new_folder(out) as folder:
        write_tensors(folder / "model.safetensors", export_state(model.state_dict(), rename(NAMES)))
    return out


FORMAT = Format(
    (read,),
    {"vit": write},
    frozenset({"model.safetensors"}),
    open_with='network.load_state_dict(safetensors.torch.load_file("{out}/model.safetensors"))',
)
