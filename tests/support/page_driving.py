"""What a person does with the page and reads from it, and what Python says of the same image."""

import base64
import io
import json
from urllib.parse import parse_qs, urlsplit

import numpy as np
import pytest
import torch
from PIL import Image

from support.tiny_networks import LABELS
from vitreous.data.augment import normalise
from vitreous.data.view import image_and_view
from vitreous.inference.engine import open_in_torch
from vitreous.server.served_model import ModelToServe

IMAGE = Image.fromarray(
    np.kron(np.random.default_rng(5).integers(0, 256, (8, 12, 3), dtype=np.uint8), np.ones((30, 30, 1), np.uint8))
)  # 240 x 360, coarse enough that every way to make it smaller sees the same


def to_serve(name, bundle, whole=True):
    return ModelToServe(name, open_in_torch(bundle, "cpu"), bundle if whole else None)


def give(browser, how="drop", image=IMAGE):
    """Drop or paste an image, and wait until it is shown."""
    hand_over(browser, how, image)
    settled(browser)


def hand_over(browser, how="drop", image=IMAGE):
    """Drop or paste an image."""
    file = io.BytesIO()
    image.save(file, "PNG")
    data = base64.b64encode(file.getvalue()).decode()
    kind = "DragEvent('drop', {dataTransfer" if how == "drop" else "ClipboardEvent('paste', {clipboardData"
    browser.run(
        f"""(() => {{
          const bytes = Uint8Array.from(atob("{data}"), (letter) => letter.charCodeAt(0));
          const given = new DataTransfer();
          given.items.add(new File([bytes], "squares.png", {{ type: "image/png" }}));
          document.body.dispatchEvent(new {kind}: given, bubbles: true, cancelable: true }}));
        }})()"""
    )


def settled(browser):
    """Wait until every panel shows what it was asked for."""
    browser.until(
        "document.querySelector('.panel') && !document.querySelector('.panel[aria-busy]') && location.hash.length > 1"
        " && [...document.querySelectorAll('.panel')].every((panel) => panel.querySelector('.saw').textContent)"
    )


def bars(browser, panel=1):
    """{label: percentage} as a person reads them."""
    rows = browser.run(
        f"[...document.querySelectorAll('.panel:nth-child({panel}) .bars li')].map((row) =>"
        " [row.querySelector('.name').textContent, row.querySelector('.chance').textContent])"
    )
    return {name: float(chance.removesuffix("\u00a0%")) for name, chance in rows}


def chances(bundle, image=IMAGE, covered=()):
    view = normalise(image_and_view(image, bundle.preprocess).view[None], bundle.preprocess)
    keep = torch.tensor([[cell for cell in range(16) if cell not in covered]])
    with torch.inference_mode():
        scores = bundle.model(view, keep_ids=keep) if covered else bundle.model(view)
    return {label: 100 * float(chance) for label, chance in zip(LABELS, scores[0].softmax(0), strict=True)}


def state(browser):
    """What the address says."""
    return parse_qs(urlsplit(browser.run("location.href")).fragment)


def covered_cells(browser):
    found = state(browser).get("covered", ["4x4:"])[0].partition(":")[2]
    runs = [run.split("-") for run in found.split(".") if run]
    return {cell for run in runs for cell in range(int(run[0]), int(run[-1]) + 1)}


def canvas(browser, selector=".panel canvas"):
    """(height, width, 3) what is drawn there."""
    browser.run("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    text = browser.run(f"document.querySelector({json.dumps(selector)}).toDataURL('image/png')")
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(text.partition(",")[2]))).convert("RGB")).astype(float)


def drawn(explanation, bundle, size):
    """(height, width, 3) what `vitreous explain` draws, of the part that the model sees."""
    box = image_and_view(IMAGE, bundle.preprocess).box
    return np.asarray(explanation.overlay().crop([round(side) for side in box]).resize(size)).astype(float)


def move(browser, selector, value, *then):
    """Bring a field to a value, as dragging does, without letting go."""
    browser.run(
        f"(() => {{ const field = document.querySelector({json.dumps(selector)}); field.value = {json.dumps(value)};"
        f" for (const kind of {['input', *then]}) field.dispatchEvent(new Event(kind)); }})()"
    )


def choose(browser, selector, value):
    move(browser, selector, value, "change")


def open_page(browser, address):
    """Open the page and wait until it listens."""
    browser.open(address)
    browser.until("document.querySelectorAll('#samples button').length > 9")


def approx(percentages):
    """Equal to what the page rounds to whole percent."""
    return {name: pytest.approx(one, abs=0.51) for name, one in percentages.items()}
