"""An engine from outside the package: the traced graph as `torch.export` itself saves, opens and computes it."""

from functools import cached_property

import torch

from vitreous.inference.engine import LOGITS, GraphEngine
from vitreous.inference.engines import EngineKind

FILE = "model.pt2"


class ExportEngine(GraphEngine):
    name = "pt2"
    batch_size = 16

    @cached_property
    def module(self):
        program, _ = self.graph
        return program.module()

    @cached_property
    def classes(self):
        _, names = self.graph
        image = torch.zeros(1, self.preprocess.channels, *self.preprocess.size, dtype=torch.uint8)
        return self._compute(image, [LOGITS])[0].shape[1] if LOGITS in names else 0

    def _compute(self, images, outputs):
        _, names = self.graph
        with torch.no_grad():
            found = self.module(images)
        return [found[names.index(output)] for output in outputs]


def convert(program, names, metadata):
    return program, list(names)


def write(graph, folder):
    program, names = graph
    torch.export.save(program, folder / FILE, extra_files={"names": " ".join(names)})


def read(folder):
    program = torch.export.load(folder / FILE, extra_files=(found := {"names": ""}))
    return program, found["names"].split()


KIND = EngineKind(
    "torch.export",
    ExportEngine,
    files=(FILE,),
    open_with='torch.export.load("{out}/model.pt2")',
    convert=convert,
    write=write,
    read=read,
)
