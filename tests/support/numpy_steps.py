"""The way of one image in NumPy and float64, from the state dict alone."""

import numpy as np

from support.numpy_vit import NumpyViT, softmax


def expected_steps(model, image, cell, query_token, layer, head):
    """The fields of `Steps` from the state dict alone, in float64."""
    c = model.config
    truth = NumpyViT(c, model.state_dict())
    answer = truth.image(image, None)
    w, p, d = truth.w, c.patch, c.width // c.heads
    padded = np.pad(image, ((0, 0), (0, -image.shape[1] % p), (0, -image.shape[2] % p)))
    row, column = divmod(cell, truth.columns)
    patch = padded[:, row * p : (row + 1) * p, column * p : (column + 1) * p]
    E = w["patch_embed.proj.weight"].reshape(c.width, -1)
    z0 = truth.embed(image, None)
    projected = E @ patch.reshape(-1) + w.get("patch_embed.proj.bias", 0)
    z = z0 if layer == 0 else truth.tokens[layer - 1]
    name = f"blocks.{layer}"
    first = c.norm == "before"
    x = truth.norm(z, f"{name}.norm1") if first else z
    q, k, v = truth.qkv(x, f"{name}.attn", head, None)
    products = k @ q[query_token]
    bias = None
    if c.position == "relative":
        bias = truth.relative(f"{name}.attn.rel_pos.relative_position_bias_table", head, None)[query_token]
    scores = products / np.sqrt(d) + (0 if bias is None else bias)
    seen = truth.seen(name, None)[query_token]
    weights = seen * np.exp(scores) / (seen * np.exp(scores)).sum()
    attention = [one[:, query_token] for one in truth.attention]  # a layer: (h, T)
    attended = w.get(f"{name}.ls1.gamma", 1) * truth.msa(x, f"{name}.attn", None)[query_token]
    middle = z[query_token] + attended if first else truth.norm(z[query_token] + attended, f"{name}.norm1")
    mlp = w.get(f"{name}.ls2.gamma", 1) * truth.mlp(
        truth.norm(middle, f"{name}.norm2") if first else middle, f"{name}.mlp"
    )
    last = truth.tokens[-1]
    y = truth.pool(truth.norm(last, "norm") if first and not c.norm_after_pool else last)
    has_class_position = c.class_token and c.position == "learned-1d" and c.position_scope != "patches"
    return {
        "patch": patch,
        "projected": projected,
        "class_token": w["cls_token"][0, 0] if c.class_token else None,
        "class_position": w["pos_embed"][0, 0] if has_class_position else None,
        "position": None if c.position in ("none", "relative") else truth.cell_position(row, column),
        "token": z0[c.prefix + cell],
        "query_embedding": z0[query_token],
        "before": z[query_token],
        "normed": x[query_token],
        "query": q[query_token],
        "keys": k,
        "values": v,
        "products": products,
        "bias": bias,
        "attention_logits": scores,
        "seen": None if truth.seen(name, None).all() else seen,
        "weights": weights,
        "summed": sum(weight * value for weight, value in zip(weights, v, strict=True)),
        "heads": attention[layer],
        "attended": attended,
        "middle": middle,
        "mlp": mlp,
        "after": truth.tokens[layer][query_token],
        "layers": np.stack([one.mean(0) for one in attention]),
        "representation": truth.norm(y, "fc_norm") if c.norm_after_pool else y,
        "logits": answer if c.classes else None,
        "probabilities": softmax(answer) if c.classes else None,
    }
