"""`vitreous explain`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from vitreous.cli.verb import Verb, verb
from vitreous.explain.request import ExplanationRequest
from vitreous.verbs.images import ImageResults, ModelAndImages, name_outputs, print_each
from vitreous.verbs.options import DeviceOption, PreprocessOption

if TYPE_CHECKING:
    from vitreous.explain.explanation import Explainer, Explanation


@dataclass(frozen=True)
class Explain(PreprocessOption, DeviceOption, ExplanationRequest, ModelAndImages, Verb["ImageResults[Explanation]"]):
    """Show what a model looked at, as an overlay on each image.

    The exit status is 1 if an image could not be read.
    """

    _: KW_ONLY
    out: str | Path | None = "explained"
    """FOLDER: Folder for the overlays, NAME-METHOD.png."""
    save_arrays: bool = False
    """Also write the numbers, as NAME-METHOD.npz."""
    streams: ClassVar[bool] = True
    json_help: ClassVar[str] = "Print one JSON object per image."

    def run(self) -> ImageResults[Explanation]:
        """Explanations of the images, each computed and written when the iterator comes to it."""
        from vitreous.data.opening import list_images
        from vitreous.distributed.world import find_device
        from vitreous.explain.explanation import Explainer
        from vitreous.inference.memory_needs import check_explanation_memory
        from vitreous.inference.opening import open_model

        device, paths = find_device(self.device), list_images(self.images)
        bundle = open_model(self.model, self.preprocess)
        bundle.model.to(device)
        explainer = Explainer(bundle, self)
        check_explanation_memory(bundle, explainer.method)
        endings = (f"-{explainer.method}{ending}" for ending in (".png", "-grid.png", ".npz"))
        files = name_outputs(self.out, self.images, paths, *endings)
        return ImageResults(
            partial(self._explain, explainer, path, named) for path, named in zip(paths, files, strict=True)
        )

    def _explain(self, explainer: Explainer, path: Path, files: list[Path]) -> Explanation:
        """One image; files: the names of the overlay, the grid and the arrays, or none of them."""
        from vitreous.explain.draw import encode
        from vitreous.storage.files import write_output

        found = explainer.explain(path)
        if not files:
            return found
        overlay, grid, arrays = files
        found.save(overlay)
        written = [overlay]
        if found.maps.shape[0] * found.maps.shape[1] > 1:
            written.append(write_output(grid, encode(found.grid())))
        if self.save_arrays:
            found.save_arrays(arrays)
            written.append(arrays)
        return replace(found, files=tuple(written))

    def show(self, result: ImageResults[Explanation]) -> None:
        """One line per image: the class, the method and the files."""

        def line(one: Explanation) -> str:
            label = "" if one.label is None else f"  {one.label} {one.score:.1%}"
            return f"{one.path}{label}  {one.method}: {', '.join(map(str, one.files))}"

        print_each(result, line)

    def to_json(self, result: ImageResults[Explanation]) -> Iterator[dict[str, Any]]:
        """{"path", "method", "label", "score", "files"} or {"path", "error"} per image."""
        from vitreous.data.decode import ImageError

        for one in result:
            if isinstance(one, ImageError):
                yield {"path": one.name, "error": one.reason}
            else:
                names = ("path", "method", "label", "score")
                yield {**{name: getattr(one, name) for name in names}, "files": list(map(str, one.files))}

    def status(self, result: ImageResults[Explanation]) -> int:
        """1 if an image could not be read."""
        return int(result.unreadable > 0)


explain = verb(Explain)
