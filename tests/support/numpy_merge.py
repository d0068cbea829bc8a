"""Token merging in NumPy and float64, written from the paper (Bolya et al. 2023, section 3 and appendix D).

Different from the paper, every second block merges, twice as many, after a first sixth of the blocks that merges none,
and fewer where patches are left out.

A token is a list of the patches that it stands for, and everything follows from these lists, one pair at a time.
"""

import numpy as np

from support.numpy_vit import NumpyViT, softmax


class NumpyMerging(NumpyViT):
    def image(self, x, keep):
        self.groups = None
        return super().image(x, keep)

    def block(self, z, name, keep):
        layer = int(name.split(".")[1])
        if layer == 0:
            self.groups = [[i] for i in range(len(z) - self.prefix)]
            self.history = []
        z = z + self.msa(self.norm(z, f"{name}.norm1"), f"{name}.attn", keep)
        reads_prefix = self.c.pool == "class"
        if layer == 0:
            rows, columns = (side // self.c.patch for side in self.c.image_size)
            self.most = int(2 * self.c.merge * len(self.groups) / (rows * columns) + 0.5)
        merging = list(range(self.c.depth))[self.c.depth // 6 :: 2]
        if layer in merging and (layer < self.c.depth - 1 or not reads_prefix):
            z = self.merge(z)
        z = z + self.mlp(self.norm(z, f"{name}.norm2"), f"{name}.mlp")
        self.history.append([list(group) for group in self.groups])
        return z

    def places(self, keep):
        """Row and column of each token: a merged one is where its patches are in the mean."""
        cells = self.cells(keep)[self.prefix :]
        return [None] * self.prefix + [np.mean([cells[patch] for patch in group], axis=0) for group in self.groups]

    def sizes(self):
        return np.array([1] * self.prefix + [len(group) for group in self.groups])

    def msa(self, z, name, keep):
        """Proportional attention: softmax(q k^T / sqrt(d) + log s) v."""
        d = self.c.width // self.c.heads
        qkv = self.dense(z, f"{name}.qkv")
        heads, maps, keys = [], [], []
        for h in range(self.c.heads):
            q, k, v = (qkv[:, part * self.c.width + h * d : part * self.c.width + (h + 1) * d] for part in range(3))
            keys.append(k)
            if self.c.rope is not None:
                places = self.places(keep)
                q, k = (np.stack([self.turn(x, at) for x, at in zip(xs, places, strict=True)]) for xs in (q, k))
            A = softmax(q @ k.T / np.sqrt(d) + np.log(self.sizes()))
            heads.append(A @ v)
            maps.append(A)
        self.keys = np.mean(keys, axis=0)[self.prefix :]
        self.attention.append(np.stack(maps))
        return self.dense(np.concatenate(heads, axis=1), f"{name}.proj")

    def merge(self, z):
        """Alternate tokens into two sets, draw one edge from each of A to its most similar in B, keep the best."""
        tokens, keys = list(z[self.prefix :]), self.keys
        B, A = list(range(0, len(tokens), 2)), list(range(1, len(tokens), 2))

        def cosine(a, b):
            return keys[a] @ keys[b] / (np.linalg.norm(keys[a]) * np.linalg.norm(keys[b]))

        edges = {a: max(B, key=lambda b: cosine(a, b)) for a in A}
        best = sorted(A, key=lambda a: -cosine(a, edges[a]))[: min(self.most, len(tokens) // 2)]
        for a in best:
            b = edges[a]
            ours, theirs = len(self.groups[a]), len(self.groups[b])
            tokens[b] = (theirs * tokens[b] + ours * tokens[a]) / (ours + theirs)
            self.groups[b] = self.groups[b] + self.groups[a]
        left = [a for a in A if a not in best] + B
        self.groups = [self.groups[i] for i in left]
        return np.concatenate([z[: self.prefix], np.stack([tokens[i] for i in left])])

    def pool(self, z):
        """Each token is there as often as it stands for a patch."""
        return super().pool(np.repeat(z, self.sizes(), axis=0))

    def apart(self, layer):
        """(h, T, T): the layer's attention among all patches; what a merged token is given, its patches share."""
        groups = [[i] for i in range(sum(map(len, self.groups)))] if layer == 0 else self.history[layer - 1]
        place = {patch: (self.prefix + number, len(group)) for number, group in enumerate(groups) for patch in group}
        tokens = [(i, 1) for i in range(self.prefix)] + [place[patch] for patch in range(len(place))]
        return np.array([[[A[i, j] / size for j, size in tokens] for i, _ in tokens] for A in self.attention[layer]])
