"""One self-contained HTML page: the figure, the table, and every token shaded by its entropy."""

from collections.abc import Callable, Sequence
from html import escape

from outrider.analysis.predictability import CERTAIN, Predictability, Text

DARKEST = 4.0
"""Entropy, in nats, from which the shade grows no darker."""

_STYLE = """
:root{--page:#fff;--ink:#222;--shade:213,94,0;--line:#ccc}
@media (prefers-color-scheme:dark){
:root{--page:#16181d;--ink:#e6e6e6;--shade:255,158,94;--line:#444}}
body{background:var(--page);color:var(--ink);font:15px/1.6 system-ui,sans-serif;max-width:60rem;
margin:2rem auto;padding:0 1rem}
pre{overflow-x:auto;font-size:12px;line-height:1.4}
.chart{max-width:100%;height:auto}
details{border:1px solid var(--line);border-radius:6px;margin:.6rem 0;padding:.4rem .8rem}
summary{cursor:pointer;font-weight:600}
.text{white-space:pre-wrap;overflow-wrap:anywhere;font-family:ui-monospace,monospace;font-size:13px}
.t{background:rgba(var(--shade),var(--h));border-radius:2px;position:relative}
.t:hover{outline:1px solid currentColor}
.t:hover::after{content:attr(data-n);position:absolute;left:0;top:1.5em;z-index:1;white-space:pre;
background:var(--ink);color:var(--page);padding:.2rem .5rem;border-radius:4px;font-size:12px}
.key span{padding:0 .5rem}
"""


def predictability_page(
    found: Predictability,
    spell: Callable[[Sequence[int]], list[str]],
    *,
    title: str,
    lines: Sequence[str],
    chart: str,
) -> str:
    """Build the page. `spell` gives the text of each token, `lines` is the table by domain."""
    steps = [0.0, 0.5, 1.0, 2.0, DARKEST]
    key = "".join(f'<span class="t" style="--h:{_shade(h):.2f}">{h:g}</span>' for h in steps)
    outputs = "".join(_output(text, spell(text.tokens)) for text in found.texts)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body>"
        f"<h1>{escape(title)}</h1>{chart}<pre>{escape(chr(10).join(lines))}</pre>"
        f'<p class="key">Shade by entropy in nats: {key}. Point at a token for its numbers; '
        f"certain means p1 &gt; {CERTAIN:g}.</p>{outputs}</body></html>\n"
    )


def _output(text: Text, spelled: Sequence[str]) -> str:
    tokens = "".join(
        f'<span class="t" style="--h:{_shade(entropy):.2f}" '
        f'data-n="{escape(repr(piece))}  H {entropy:.3f}  p1 {prob:.3f}  surprise {surprise:.3f}">'
        f"{escape(piece)}</span>"
        for piece, entropy, prob, surprise in zip(
            spelled, text.entropies, text.top_probs, text.surprises, strict=True
        )
    )
    mean = sum(text.entropies) / max(1, len(text.entropies))
    loop = ", ends in a loop" if text.is_looping else ""
    head = f"{text.domain}: {text.id} ({len(text.tokens)} tokens, mean H {mean:.2f}{loop})"
    return f'<details><summary>{escape(head)}</summary><div class="text">{tokens}</div></details>'


def _shade(entropy: float) -> float:
    return 0.65 * min(1.0, entropy / DARKEST)
