"""The paper's equations in NumPy and float64, written from the paper alone: the truth that the model is tested against.

Slow and literal on purpose: loops over images, patches, heads and tokens where the text has an index.
"""

import numpy as np
import torch
from scipy.special import erf


def layer_norm(x, weight, bias, eps):
    mean = x.mean(-1, keepdims=True)
    variance = ((x - mean) ** 2).mean(-1, keepdims=True)
    return (x - mean) / np.sqrt(variance + eps) * weight + bias


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def gelu(x):
    return x * 0.5 * (1 + erf(x / np.sqrt(2)))


def gelu_tanh(x):
    return x * 0.5 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def silu(x):
    return x * sigmoid(x)


def relu(x):
    return np.maximum(x, 0)


class NumpyViT:
    def __init__(self, config, state):
        self.c = config
        self.w = {name: tensor.detach().numpy().astype(np.float64) for name, tensor in state.items()}

    def norm(self, x, name):
        return layer_norm(x, self.w[f"{name}.weight"], self.w[f"{name}.bias"], self.c.norm_eps)

    def dense(self, x, name):
        return x @ self.w[f"{name}.weight"].T + self.w.get(f"{name}.bias", 0.0)

    def __call__(self, images, keep=None):
        return np.stack([self.image(x, None if keep is None else keep[i]) for i, x in enumerate(images)])

    def image(self, x, keep):
        c = self.c
        z = self.embed(x, keep)
        self.attention = []
        self.tokens = []
        for layer in range(c.depth):
            z = self.block(z, f"blocks.{layer}", keep)
            self.tokens.append(z)
        if c.norm == "before" and not c.norm_after_pool:
            z = self.norm(z, "norm")
        if c.distilled and c.classes:
            return (self.dense(z[0], "head") + self.dense(z[1], "head_dist")) / 2
        y = self.pool(z)
        if c.norm_after_pool:
            y = self.norm(y, "fc_norm")
        if c.classifier == "mlp":
            y = np.tanh(self.dense(y, "pre_logits.fc"))
        if c.projection:
            return self.dense(y, "projection")
        return self.dense(y, "head") if c.classes else y

    def embed(self, x, keep):
        """Equation 1."""
        c, p = self.c, self.c.patch
        x = np.pad(x, ((0, 0), (0, -x.shape[1] % p), (0, -x.shape[2] % p)))
        self.rows, self.columns = x.shape[1] // p, x.shape[2] // p
        E = self.w["patch_embed.proj.weight"]
        patches = []
        for row in range(self.rows):
            for column in range(self.columns):
                patch = x[:, row * p : (row + 1) * p, column * p : (column + 1) * p]
                token = np.array([(patch * E[d]).sum() for d in range(c.width)]) + self.w.get(
                    "patch_embed.proj.bias", 0.0
                )
                patches.append(token + self.cell_position(row, column))
        z = patches if keep is None else [patches[i] for i in keep]
        prefix = []
        if c.class_token:
            prefix.append(self.w["cls_token"][0, 0])
        if c.distilled:
            prefix.append(self.w["dist_token"][0, 0])
        for r in range(c.registers):
            prefix.append(self.w["reg_token"][0, r])
        for i in range(len(prefix)):
            has_position = {"all": True, "class": i < c.class_token + c.distilled, "patches": False}[c.position_scope]
            if c.position == "learned-1d" and has_position:
                prefix[i] = prefix[i] + self.w["pos_embed"][0, i]
        self.prefix = len(prefix)
        z = np.stack(prefix + z)
        return self.norm(z, "norm_pre") if c.norm_pre else z

    def cell_position(self, row, column):
        c = self.c
        if c.position == "learned-1d":
            skipped = self.w["pos_embed"].shape[1] - self.rows * self.columns
            return self.w["pos_embed"][0, skipped + row * self.columns + column]
        if c.position == "learned-2d":
            return np.concatenate([self.w["pos_embed_x"][column], self.w["pos_embed_y"][row]])
        if c.position == "sincos-2d":
            omega = [1 / 10_000 ** (i / (c.width / 4)) for i in range(c.width // 4)]
            return np.array(
                [f(place * o) for place in (column, row) for f in (np.sin, np.cos) for o in omega],
            )
        return np.zeros(c.width)

    def block(self, z, name, keep):
        """Equations 2 and 3, or the original Transformer's order."""
        scale1 = self.w.get(f"{name}.ls1.gamma", 1.0)
        scale2 = self.w.get(f"{name}.ls2.gamma", 1.0)
        if self.c.norm == "before":
            z = z + scale1 * self.msa(self.norm(z, f"{name}.norm1"), f"{name}.attn", keep)
            return z + scale2 * self.mlp(self.norm(z, f"{name}.norm2"), f"{name}.mlp")
        z = self.norm(z + scale1 * self.msa(z, f"{name}.attn", keep), f"{name}.norm1")
        return self.norm(z + scale2 * self.mlp(z, f"{name}.mlp"), f"{name}.norm2")

    def msa(self, z, name, keep):
        """Appendix A: self-attention of each head, concatenated and projected."""
        d = self.c.width // self.c.heads
        heads, maps = [], []
        for h in range(self.c.heads):
            q, k, v = self.qkv(z, name, h, keep)
            scores = q @ k.T / np.sqrt(d)
            if self.c.position == "relative":
                scores = scores + self.relative(f"{name}.rel_pos.relative_position_bias_table", h, keep)
            scores = np.where(self.seen(name, keep), scores, -np.inf)
            A = softmax(scores)
            maps.append(A)
            heads.append(A @ v)
        self.attention.append(np.stack(maps))
        read = np.concatenate(heads, axis=1)
        if self.c.attention_norm:
            read = self.norm(read, f"{name}.norm")
        return self.dense(read, f"{name}.proj")

    def qkv(self, z, name, h, keep):
        """Queries, keys and values (T, d) of one head."""
        D, d = self.c.width, self.c.width // self.c.heads
        qkv = self.dense(z, f"{name}.qkv")
        if self.c.qkv_bias == "q+v":
            qkv[:, D : 2 * D] -= self.w[f"{name}.qkv.bias"][D : 2 * D]
        q, k, v = (qkv[:, part * D + h * d : part * D + (h + 1) * d] for part in range(3))
        if self.c.qk_norm:
            q, k = self.norm(q, f"{name}.q_norm"), self.norm(k, f"{name}.k_norm")
        if self.c.rope is not None:
            cells = self.cells(keep)
            q, k = (np.stack([self.turn(x, cell) for x, cell in zip(xs, cells, strict=True)]) for xs in (q, k))
        return q, k, v

    def turn(self, x, cell):
        """A query or key (d,) of the patch at a cell (row, column): each pair of its numbers as a complex number."""
        rope, d = self.c.rope, len(x)
        if cell is None:
            return x
        turned = np.array(x)
        for pair in range(d // 2):
            first, k = pair < d // 4, pair % (d // 4)
            axis = 0 if first != rope.columns_first else 1
            period = rope.base ** (4 * k / d)
            if rope.bfloat16:
                period = float(torch.tensor(period).bfloat16())
            if rope.coordinates == "centres":
                place = 2 * np.pi * (2 * (cell[axis] + 0.5) / (self.rows, self.columns)[axis] - 1)
            else:
                place = cell[axis] + rope.offset
                if rope.reference:
                    place *= rope.reference[axis] / (self.rows, self.columns)[axis]
            real, imaginary = (2 * pair, 2 * pair + 1) if rope.interleaved else (pair, pair + d // 2)
            number = (x[real] + 1j * x[imaginary]) * np.exp(1j * place / period)
            turned[real], turned[imaginary] = number.real, number.imag
        return turned

    def cells(self, keep):
        """Row and column of each token; None for those without a place."""
        cells = [(r, c) for r in range(self.rows) for c in range(self.columns)]
        return [None] * self.prefix + (cells if keep is None else [cells[i] for i in keep])

    def seen(self, name, keep):
        """The explicit mask of limited attention: which token (row) may attend to which (column)."""
        cells, along_rows = self.cells(keep), int(name.split(".")[1]) % 2 == 0

        def sees(query, key):
            if query is None or key is None or self.c.attention == "full":
                return True
            down, right = abs(query[0] - key[0]), abs(query[1] - key[1])
            if self.c.attention == "axial":
                return down == 0 if along_rows else right == 0
            return max(down, right) <= (self.c.window - 1) / 2

        return np.array([[sees(query, key) for key in cells] for query in cells])

    def relative(self, table, head, keep):
        table = self.w[table][:, head]
        cells = self.cells(keep)
        bias = np.empty((len(cells), len(cells)))
        for i, query in enumerate(cells):
            for j, key in enumerate(cells):
                if query is None or key is None:
                    bias[i, j] = table[-1] if query == key else table[-3] if query is None else table[-2]
                else:
                    down, right = query[0] - key[0], query[1] - key[1]
                    bias[i, j] = table[(down + self.rows - 1) * (2 * self.columns - 1) + right + self.columns - 1]
        return bias

    def mlp(self, x, name):
        x = self.dense(x, f"{name}.fc1")
        if self.c.mlp == "swiglu":
            x = silu(x[..., : self.c.mlp_width]) * x[..., self.c.mlp_width :]
        else:
            x = {"gelu": gelu, "gelu-tanh": gelu_tanh, "quick-gelu": lambda x: x * sigmoid(1.702 * x), "relu": relu}[
                self.c.mlp
            ](x)
        if self.c.mlp_norm:
            x = self.norm(x, f"{name}.norm")
        return self.dense(x, f"{name}.fc2")

    def pool(self, z):
        c, heads = self.c, self.c.pool_heads or self.c.heads
        d = c.width // heads
        if c.pool == "class":
            return (z[0] + z[1]) / 2 if c.distilled else z[0]
        patches = z[self.prefix :]
        if c.pool == "mean":
            return patches.mean(0)
        if c.pool == "class+mean":
            return np.concatenate([z[0], patches.mean(0)])
        q = self.dense(self.w["attn_pool.latent"][0, 0], "attn_pool.q")
        kv = self.dense(z if c.pool_prefix else patches, "attn_pool.kv")
        out = []
        for h in range(heads):
            k, v = kv[:, h * d : (h + 1) * d], kv[:, c.width + h * d : c.width + (h + 1) * d]
            out.append(softmax(k @ q[h * d : (h + 1) * d] / np.sqrt(d)) @ v)
        y = self.dense(np.concatenate(out), "attn_pool.proj")
        return y + self.mlp(self.norm(y, "attn_pool.norm"), "attn_pool.mlp")
