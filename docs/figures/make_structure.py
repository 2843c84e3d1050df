"""Draws the Transformer's structure, docs/figures/structure.svg and structure.zh.svg: `python make_structure.py`.

Encoder and decoder as Figure 1 of the paper has them, beside them multi-head attention and what each head computes
(Figure 2). Information flows upwards. Text stays text; every colour goes with a word; light and dark each have theirs.
"""

import re
from collections.abc import Sequence
from html import escape
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
FILES = {"en": "structure.svg", "zh": "structure.zh.svg"}

LABELS: dict[str, dict[str, str]] = {
    "en": {
        "title": "The Transformer: encoder, decoder and attention",
        "about": "The encoder turns source tokens into vectors; the decoder attends to them and to the target so far, "
        "and gives the probabilities of the next token. On the right, multi-head attention and scaled dot-product "
        "attention.",
        "encoder": "Encoder",
        "decoder": "Decoder",
        "source": "source tokens",
        "target": "target tokens so far",
        "embedding": "Embedding × √d_model",
        "positions": "positional encoding",
        "self": "Multi-head|self-attention",
        "masked": "Masked multi-head|self-attention",
        "cross": "Multi-head|cross-attention",
        "norm": "Add, layer norm",
        "ffn": "Feed-forward network",
        "memory": "encoder output",
        "linear": "Linear",
        "softmax": "Softmax",
        "output": "probabilities of the next token",
        "layers": "N ×",
        "multi_head": "Multi-head attention",
        "heads": "h heads",
        "scaled": "Scaled dot-product|attention",
        "scaled_title": "Scaled dot-product attention",
        "concat": "Concatenate",
        "product": "Matrix product",
        "scale": "Scale by 1 / √d_k",
        "mask": "Mask: pads, the future",
    },
    "zh": {
        "title": "Transformer 的结构：编码器、解码器与注意力",
        "about": "编码器把源语言词元变成向量；解码器关注这些向量和已生成的目标词元，给出下一个词元的概率。"
        "右侧是多头注意力和缩放点积注意力。",
        "encoder": "编码器",
        "decoder": "解码器",
        "source": "源语言词元",
        "target": "已生成的目标词元",
        "embedding": "词嵌入 × √d_model",
        "positions": "位置编码",
        "self": "多头自注意力",
        "masked": "带掩码的|多头自注意力",
        "cross": "多头交叉注意力",
        "norm": "残差相加、层归一化",
        "ffn": "前馈网络",
        "memory": "编码器输出",
        "linear": "线性层",
        "softmax": "Softmax",
        "output": "下一个词元的概率",
        "layers": "N ×",
        "multi_head": "多头注意力",
        "heads": "h 个头",
        "scaled": "缩放点积注意力",
        "scaled_title": "缩放点积注意力",
        "concat": "拼接",
        "product": "矩阵乘法",
        "scale": "乘以 1 / √d_k",
        "mask": "掩码：填充与未来",
    },
}

WIDTH, HEIGHT = 1020, 770
# Fill of each kind of box, light and dark; tints of Okabe and Ito's colours, which colour-blind readers tell apart.
FILLS = {
    "attention": ("#cfe5f5", "#0b4a70"),
    "norm": ("#f7f0b5", "#5c5410"),
    "ffn": ("#fbdfb3", "#6e4700"),
    "embedding": ("#c6ebe0", "#00523c"),
    "output": ("#f1d9e7", "#6b3a57"),
    "plain": ("#ececec", "#3d3d3d"),
}
INK, PAPER, FRAME = ("#1a1a1a", "#f2f2f2"), ("#ffffff", "#161616"), ("#8a8a8a", "#8f8f8f")
FONTS = "system-ui, 'Noto Sans', 'Noto Sans CJK SC', 'PingFang SC', 'Microsoft YaHei', sans-serif"
LINE = 16  # between the lines of a label

Point = tuple[float, float]


class Drawing:
    """SVG elements in the order in which they are drawn; boxes are given by their centre."""

    def __init__(self) -> None:
        self.elements: list[str] = []

    def box(self, kind: str, label: str, x: float, y: float, width: float = 190, height: float = 38) -> None:
        corner = f'x="{x - width / 2:g}" y="{y - height / 2:g}" width="{width:g}" height="{height:g}"'
        self.elements.append(f'<rect class="box {kind}" {corner} rx="6"/>')
        if label:
            self.text(label, x, y)

    def text(self, label: str, x: float, y: float, kind: str = "", anchor: str = "middle") -> None:
        """A label about (x, y); "|" breaks a line, and "_k" or "_model" is set below it."""
        lines = label.split("|")
        top = y - (len(lines) - 1) * LINE / 2
        name = f' class="{kind}"' if kind else ""
        for number, line in enumerate(lines):
            place = f'x="{x:g}" y="{top + number * LINE + 4.5:g}" text-anchor="{anchor}"'
            self.elements.append(f"<text{name} {place}>{_lowered(line)}</text>")

    def line(self, points: Sequence[Point], arrow: bool = True) -> None:
        path = "M" + " L".join(f"{x:g} {y:g}" for x, y in points)
        end = ' marker-end="url(#head)"' if arrow else ""
        self.elements.append(f'<path class="line" d="{path}"{end}/>')

    def frame(self, left: float, top: float, right: float, bottom: float) -> None:
        corner = f'x="{left:g}" y="{top:g}" width="{right - left:g}" height="{bottom - top:g}"'
        self.elements.append(f'<rect class="frame" {corner} rx="14"/>')

    def plus(self, x: float, y: float) -> None:
        self.elements.append(f'<circle class="plus" cx="{x:g}" cy="{y:g}" r="11"/>')
        self.line([(x - 6, y), (x + 6, y)], arrow=False)
        self.line([(x, y - 6), (x, y + 6)], arrow=False)


def _lowered(text: str) -> str:
    first, *rest = re.split(r"_(\w+)", escape(text, quote=False))
    for small, after in zip(rest[::2], rest[1::2], strict=True):
        first += f'<tspan dy="4" font-size="10">{small}</tspan>' + (f'<tspan dy="-4">{after}</tspan>' if after else "")
    return first


def _sublayer(draw: Drawing, words: dict[str, str], kind: str, label: str, x: float, y: float, side: int) -> None:
    """A sub-layer at y, Add and norm above it, and the residual connection around it on the left (-1) or right (1)."""
    below, norm, aside = y + 33, y - 50, x + side * 112
    draw.line([(x, below), (aside, below), (aside, norm), (x + side * 96, norm)])
    draw.box(kind, words[label], x, y, height=42)
    draw.line([(x, y - 21), (x, norm + 18)])
    draw.box("norm", words["norm"], x, norm, height=34)


def _inputs(draw: Drawing, words: dict[str, str], tokens: str, x: float, side: int) -> None:
    """Tokens, embedding, and the positions that are added to it."""
    draw.text(words[tokens], x, 752)
    draw.line([(x, 741), (x, 725)])
    draw.box("embedding", words["embedding"], x, 705, height=36)
    draw.line([(x, 687), (x, 667)])
    draw.plus(x, 655)
    draw.line([(x + side * 48, 655), (x + side * 12, 655)])
    draw.text(words["positions"], x + side * 52, 655, anchor="end" if side < 0 else "start")
    draw.line([(x, 644), (x, 593)])


def _encoder(draw: Drawing, words: dict[str, str], x: float) -> None:
    draw.text(words["encoder"], x - 128, 352, "heading", "start")
    draw.frame(x - 128, 372, x + 128, 620)
    draw.text(words["layers"], x - 148, 496, "heading")
    _inputs(draw, words, "source", x, -1)
    _sublayer(draw, words, "attention", "self", x, 572, -1)
    draw.line([(x, 505), (x, 473)])
    _sublayer(draw, words, "ffn", "ffn", x, 452, -1)


def _decoder(draw: Drawing, words: dict[str, str], x: float) -> None:
    draw.text(words["decoder"], x - 128, 232, "heading", "start")
    draw.frame(x - 128, 252, x + 128, 620)
    draw.text(words["layers"], x + 148, 436, "heading")
    _inputs(draw, words, "target", x, 1)
    _sublayer(draw, words, "attention", "masked", x, 572, 1)
    draw.line([(x, 505), (x, 473)])
    _sublayer(draw, words, "attention", "cross", x, 452, 1)
    draw.text("Q", x - 12, 482, "symbol")
    draw.line([(x, 385), (x, 353)])
    _sublayer(draw, words, "ffn", "ffn", x, 332, 1)
    draw.line([(x, 265), (x, 213)])
    draw.box("plain", words["linear"], x, 195, height=34)
    draw.line([(x, 178), (x, 155)])
    draw.box("output", words["softmax"], x, 137, height=34)
    draw.line([(x, 120), (x, 97)])
    draw.text(words["output"], x, 82)


def _memory(draw: Drawing, words: dict[str, str], encoder: float, decoder: float) -> None:
    """From the top of the encoder into the decoder's cross-attention."""
    between = encoder + 138
    draw.line([(encoder, 385), (encoder, 340), (between, 340), (between, 452), (decoder - 96, 452)])
    draw.text(words["memory"], (encoder + between) / 2, 326)
    draw.text("K, V", between + 17, 441, "symbol")


def _multi_head(draw: Drawing, words: dict[str, str], x: float) -> None:
    draw.text(words["multi_head"], x, 40, "heading")
    draw.line([(x, 85), (x, 66)])
    draw.box("plain", words["linear"], x, 102, 150, 34)
    draw.line([(x, 143), (x, 120)])
    draw.box("plain", words["concat"], x, 160, 150, 34)
    draw.line([(x, 206), (x, 178)])
    for shift in (10, 5, 0):  # the heads stand behind one another
        draw.box("attention", "", x + shift, 232 - shift, 230, 46)
    draw.text(words["scaled"], x, 232)
    draw.text(words["heads"], x + 136, 228, anchor="start")
    for place, name in ((x - 76, "Q"), (x, "K"), (x + 76, "V")):
        for shift in (10, 5, 0):
            draw.box("plain", "", place + shift, 302 - shift, 62, 30)
        draw.text(words["linear"], place, 302)
        draw.line([(place, 287), (place, 257)])
        draw.line([(place, 346), (place, 319)])
        draw.text(name, place, 360, "symbol")


def _scaled(draw: Drawing, words: dict[str, str], x: float) -> None:
    draw.text(words["scaled_title"], x, 412, "heading")
    draw.text("softmax(Q Kᵀ / √d_k) V", x, 434, "symbol")
    left, right = x - 36, x + 104
    draw.line([(x, 463), (x, 450)])
    draw.box("attention", words["product"], x, 482, 250, 36)
    for y, kind, label in ((534, "output", "softmax"), (584, "plain", "mask"), (634, "plain", "scale")):
        draw.box(kind, words[label], left, y, 178, 34)
        draw.line([(left, y - 17), (left, y - 33)] if y > 534 else [(left, 517), (left, 501)])
    draw.box("attention", words["product"], left, 684, 178, 34)
    draw.line([(left, 667), (left, 652)])
    for place, name, top in ((left - 46, "Q", 702), (left + 46, "K", 702), (right, "V", 501)):
        draw.line([(place, 728), (place, top)])
        draw.text(name, place, 744, "symbol")


def _style() -> str:
    def rules(shade: int) -> str:
        fills = [f".{kind} {{ fill: {fill[shade]}; }}" for kind, fill in FILLS.items()]
        ink, paper, frame = INK[shade], PAPER[shade], FRAME[shade]
        return " ".join(
            [
                f".paper, .plus {{ fill: {paper}; }} text, .head {{ fill: {ink}; }}",
                f".line, .plus {{ stroke: {ink}; }} .box {{ stroke: {ink}; }} .frame {{ stroke: {frame}; }}",
                *fills,
            ]
        )

    return (
        f"text {{ font: 13px {FONTS}; }} .heading {{ font-size: 15px; font-weight: 600; }} "
        ".symbol { font-style: italic; } .line { fill: none; stroke-width: 1.3; } .box { stroke-width: 1; } "
        ".plus { stroke-width: 1.3; } .frame { fill: none; stroke-width: 1.5; stroke-dasharray: 6 4; } "
        f"{rules(0)} @media (prefers-color-scheme: dark) {{ {rules(1)} }}"
    )


def figure(language: str) -> str:
    """The whole SVG file with labels in "en" or "zh"."""
    words, draw = LABELS[language], Drawing()
    encoder, decoder, panel = 200, 500, 820
    _encoder(draw, words, encoder)
    _memory(draw, words, encoder, decoder)
    _decoder(draw, words, decoder)
    _multi_head(draw, words, panel)
    _scaled(draw, words, panel)
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}"'
    lines = [
        f'{head} role="img" aria-labelledby="title about" xml:lang="{language}">',
        f'<title id="title">{escape(words["title"])}</title>',
        f'<desc id="about">{escape(words["about"])}</desc>',
        f"<style>{_style()}</style>",
        '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
        '<path class="head" d="M0 0L8 4L0 8z"/></marker></defs>',
        f'<rect class="paper" width="{WIDTH}" height="{HEIGHT}"/>',
        *draw.elements,
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    for language, name in FILES.items():
        (FOLDER / name).write_text(figure(language), encoding="utf-8")
