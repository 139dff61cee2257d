"""The parts of a page, compressed into its text, and the policy that lets nothing else run.

A view is compressed by itself and unpacked when it is shown, so that a board of many solutions
stays a small file. A server would compress a page on its way; a disk does not.
"""

from __future__ import annotations

import base64
import hashlib
import json
import zlib
from collections.abc import Iterable, Mapping

RAW = -15
"""zlib's window without a header, which browsers call `deflate-raw`."""


def packed(parts: Mapping[str, str]) -> str:
    """Return the parts as a JSON object of compressed texts in base64, by name."""
    return embedded(
        {name: base64.b64encode(_deflated(text)).decode() for name, text in parts.items()}
    )


def embedded(data: Mapping[str, object]) -> str:
    """Return JSON for an element of a page.

    A name may be a contributor's: `<` is escaped, so that none can end the element.
    """
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=False)
    return text.replace("<", "\\u003c")


def unpacked(text: str) -> dict[str, str]:
    """Return the parts of a packed page, as a browser unpacks them."""
    return {
        name: zlib.decompress(base64.b64decode(part), RAW).decode()
        for name, part in json.loads(text).items()
    }


def policy(scripts: Iterable[str], styles: Iterable[str]) -> str:
    """Return the Content-Security-Policy that allows these inline texts and no request."""
    return "; ".join((
        "default-src 'none'",
        f"script-src {_hashes(scripts)}",
        f"style-src {_hashes(styles)}",
        "img-src data:",
        "base-uri 'none'",
        "form-action 'none'",
    ))  # fmt: skip


def _deflated(text: str) -> bytes:
    compressor = zlib.compressobj(9, zlib.DEFLATED, RAW)
    return compressor.compress(text.encode()) + compressor.flush()


def _hashes(texts: Iterable[str]) -> str:
    digests = (hashlib.sha256(text.encode()).digest() for text in texts)
    return " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)
