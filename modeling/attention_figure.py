"""Attention maps as a picture: one panel a layer and head, or a layer's mean over its heads."""

import io
import unicodedata

from vanilla_transformer.configuration.errors import UserError
from vanilla_transformer.modeling.attention_maps import AttentionMap

# Tried in this order for the characters that the first one lacks.
FONTS = (
    "DejaVu Sans",
    "Noto Sans CJK SC",
    "Noto Sans CJK JP",
    "Noto Sans SC",
    "Source Han Sans SC",
    "WenQuanYi Zen Hei",
    "WenQuanYi Micro Hei",
    "Droid Sans Fallback",
    "PingFang SC",
    "Microsoft YaHei",
    "Noto Sans",
)


def attention_figure(attention: AttentionMap, layer: int | None = None, head: int | None = None) -> bytes:
    """A PNG of one kind of attention, (layers x heads) panels; `layer` and `head` count from 0, None shows all.

    Raises UserError, which names them, where no installed font has the characters of the sentence.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    layers = range(len(attention.weights)) if layer is None else [layer]
    heads = range(len(attention.weights[0])) if head is None else [head]
    families = fonts_for("".join(attention.queries + attention.keys))
    size = 0.9 + 0.22 * max(len(attention.keys), len(attention.queries))
    with rc_context({"font.family": families, "font.size": 8}):
        figure = Figure(figsize=(size * len(heads), size * len(layers)), layout="constrained", dpi=120)
        axes = figure.subplots(len(layers), len(heads), squeeze=False)
        for row, one_layer in zip(axes, layers, strict=True):
            for panel, one_head in zip(row, heads, strict=True):
                # Blues is read by lightness alone, whatever colours the reader sees.
                panel.imshow(attention.weights[one_layer][one_head], cmap="Blues", vmin=0, vmax=1, aspect="auto")
                panel.set_xticks(range(len(attention.keys)), attention.keys, rotation=90)
                panel.set_yticks(range(len(attention.queries)), attention.queries)
                panel.set_title(f"layer {one_layer + 1}, head {one_head + 1}")
        figure.suptitle(attention.kind)
        picture = io.BytesIO()
        figure.savefig(picture, format="png")
    return picture.getvalue()


def fonts_for(text: str) -> list[str]:
    """Installed font families that together have every visible character of the text.

    Raises UserError with the characters that none of them has: matplotlib would draw boxes in their place.
    """
    from matplotlib import font_manager

    paths = {entry.name: entry.fname for entry in font_manager.fontManager.ttflist}
    families, missing = [], {ord(c) for c in text if not unicodedata.category(c).startswith(("Z", "C", "M"))}
    for name in [name for name in FONTS if name in paths]:
        has = missing & set(font_manager.get_font(paths[name]).get_charmap())
        if has or not families:
            families.append(name)
            missing -= has
    if missing:
        shown = " ".join(chr(code) for code in sorted(missing)[:10])
        raise UserError(
            f"No installed font has these characters of the sentence: {shown}. Install one, for example with "
            "`apt install fonts-noto-cjk` for Chinese, Japanese and Korean, or write the HTML page, which uses the "
            "browser's fonts."
        )
    return families
