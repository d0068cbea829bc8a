"""The model against `transformers`' ViT with the same random weights: scores, every layer's tokens and attention."""

import torch
import transformers

from vitreous import Trace, ViT

NAMES = {
    "norm1": "layernorm_before",
    "norm2": "layernorm_after",
    "attn.proj": "attention.o_proj",
    "mlp.fc1": "mlp.fc1",
    "mlp.fc2": "mlp.fc2",
}


def peer_of(model):
    """`transformers`' ViT with this model's weights."""
    c = model.config
    peer = transformers.ViTForImageClassification(
        transformers.ViTConfig(
            hidden_size=c.width,
            num_hidden_layers=c.depth,
            num_attention_heads=c.heads,
            intermediate_size=c.mlp_width,
            image_size=c.image_size,
            patch_size=c.patch,
            num_channels=c.channels,
            layer_norm_eps=c.norm_eps,
            num_labels=c.classes,
            attn_implementation="eager",
        )
    )
    ours = model.state_dict()
    theirs = {
        "vit.embeddings.cls_token": ours["cls_token"],
        "vit.embeddings.position_embeddings": ours["pos_embed"],
    }
    for kind in ("weight", "bias"):
        theirs[f"vit.embeddings.patch_embeddings.projection.{kind}"] = ours[f"patch_embed.proj.{kind}"]
        theirs[f"vit.layernorm.{kind}"] = ours[f"norm.{kind}"]
        theirs[f"classifier.{kind}"] = ours[f"head.{kind}"]
        for layer in range(c.depth):
            for our_name, their_name in NAMES.items():
                theirs[f"vit.layers.{layer}.{their_name}.{kind}"] = ours[f"blocks.{layer}.{our_name}.{kind}"]
            for name, part in zip("qkv", ours[f"blocks.{layer}.attn.qkv.{kind}"].chunk(3), strict=True):
                theirs[f"vit.layers.{layer}.attention.{name}_proj.{kind}"] = part
    peer.load_state_dict(theirs)
    return peer.eval()


def test_equal_to_transformers(subtests):
    for name in ["N/4@32", "N/4@24x40", "Ti/16"]:
        with subtests.test(name=name):
            model = ViT(name, classes=10)
            draw = torch.Generator().manual_seed(0)
            with torch.no_grad():
                for parameter in model.parameters():  # no zeros and ones, so that every weight matters
                    parameter.add_(torch.randn(parameter.shape, generator=draw) * 0.02)
            images = torch.randn(2, 3, *model.config.image_size, generator=draw)
            trace = Trace()
            with torch.no_grad():
                scores = model.eval()(images, trace=trace)
                peer = peer_of(model)(images, output_attentions=True, output_hidden_states=True)
                torch.testing.assert_close(model(images), peer.logits, atol=1e-5, rtol=0)
            torch.testing.assert_close(scores, peer.logits, atol=1e-5, rtol=0)
            torch.testing.assert_close(trace.embedded, peer.hidden_states[0], atol=1e-5, rtol=0)
            for layer in range(model.config.depth):
                torch.testing.assert_close(trace.attention[layer], peer.attentions[layer], atol=1e-5, rtol=0)
                torch.testing.assert_close(trace.tokens[layer], peer.hidden_states[layer + 1], atol=2e-5, rtol=0)
