"""The picture of the page in the docs: `python -m tests.tools.screenshot docs/images/explain.png`.

It shows a Granite of 40 layers, which takes a minute to compile. With `--explanation FILE` it shows
what `spyre explain --json FILE` has written, with `--made-up` the model of the tests.
"""

from __future__ import annotations

import argparse
import base64
import struct
import tempfile
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tests.tools import explanations
from tests.tools.browser import Opened, open_browser
from torch_spyre.tools.explain.document import Explanation, decode
from torch_spyre.tools.explain.page import render

if TYPE_CHECKING:
    from playwright.sync_api import Page

PIXELS = """async (data) => {
  const image = new Image();
  image.src = `data:image/png;base64,${data}`;
  await image.decode();
  const canvas = new OffscreenCanvas(image.width, image.height);
  const context = canvas.getContext("2d");
  context.drawImage(image, 0, 0);
  const bytes = context.getImageData(0, 0, image.width, image.height).data;
  let text = "";
  for (let i = 0; i < bytes.length; i += 8192)
    text += String.fromCharCode(...bytes.slice(i, i + 8192));
  return [image.width, image.height, btoa(text)];
}"""


def granite(layers: int = 40, tokens: int = 128) -> Explanation:
    """A Granite small enough to compile here, and as deep as the real one."""
    import torch
    from transformers import GraniteConfig, GraniteForCausalLM

    import torch_spyre

    torch.manual_seed(0)
    config = GraniteConfig(
        vocab_size=4096,
        hidden_size=512,
        intermediate_size=1536,
        num_hidden_layers=layers,
        num_attention_heads=8,
        num_key_value_heads=2,
        use_cache=False,
    )
    model = GraniteForCausalLM(config).half().eval().to("spyre")
    input_ids = torch.randint(0, config.vocab_size, (1, tokens)).to("spyre")
    with torch.no_grad():
        return torch_spyre.explain(model, input_ids)


def take(explanation: Explanation, target: Path, address: str) -> None:
    """One picture, 1400 pixels wide, in the light scheme."""
    with tempfile.TemporaryDirectory() as folder, open_browser() as browser:
        html = render(explanation)
        opened = Opened(browser, html, Path(folder), color_scheme="light")
        opened.go(address)
        assert opened.errors == []
        steps = opened.page.evaluate("explainPage.model.launched.filter((op) => op.step).length")
        print(f"{steps:,} steps, {len(html.encode()) / 1e6:.1f} MB, {opened.nodes()} elements")
        picture = opened.page.screenshot()
        opened.page.goto("about:blank")
        target.write_bytes(with_few_colours(opened.page, picture))


def with_few_colours(page: Page, picture: bytes) -> bytes:
    """A PNG with a palette, half as large: the commonest 256 colours, the others by the nearest.

    The browser decodes the picture, so that nothing else has to be installed for it.
    """
    width, height, data = page.evaluate(PIXELS, base64.b64encode(picture).decode())
    pixels = np.frombuffer(base64.b64decode(data), np.uint8).reshape(-1, 4)[:, :3]
    colours, inverse, counts = np.unique(pixels, axis=0, return_inverse=True, return_counts=True)
    palette = colours[np.argsort(-counts, kind="stable")[:256]].astype(int)
    distances = np.abs(colours.astype(int)[:, None, :] - palette[None, :, :]).sum(-1)
    indices = distances.argmin(-1).astype(np.uint8)[inverse].reshape(height, width)
    rows = np.pad(indices, ((0, 0), (1, 0)))  # in front of each row: no filter

    def chunk(name: bytes, body: bytes) -> bytes:
        return (
            struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
        )

    header = struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)
    return b"".join(
        (
            b"\x89PNG\r\n\x1a\n",
            chunk(b"IHDR", header),
            chunk(b"PLTE", palette.astype(np.uint8).tobytes()),
            chunk(b"IDAT", zlib.compress(rows.tobytes(), 9)),
            chunk(b"IEND", b""),
        )
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target", type=Path, help="the PNG")
    parser.add_argument(
        "--address", default="#launch=8&step=47", help="what is selected (default %(default)s)"
    )
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--explanation", type=Path, metavar="FILE", help="JSON to show")
    source.add_argument("--made-up", action="store_true", help="show the model of the tests")
    options = parser.parse_args()
    if options.made_up:
        explanation = explanations.decoder(40)
    elif options.explanation:
        explanation = decode(options.explanation.read_bytes())
    else:
        explanation = granite()
    take(explanation, options.target, options.address)


if __name__ == "__main__":
    main()
