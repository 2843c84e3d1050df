"""Attention maps as one HTML file that needs no network: choose kind, layer and head, hover to read a weight."""

import html
import json
import re

from vanilla_transformer.modeling.attention_maps import SentenceAttention

# Lightness alone carries the value (Okabe and Ito's blue), so that colour-blind readers and printers see the same.
_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Attention: @TITLE@</title>
<style>
body { font: 15px/1.5 system-ui, "Noto Sans", "Noto Sans CJK SC", "PingFang SC", "Microsoft YaHei", sans-serif;
       margin: 2rem auto; max-width: 70rem; padding: 0 1rem; color: #1a1a1a; background: #fff; }
h1 { font-size: 1.2rem; margin: 0; }
p { margin: .3rem 0; }
fieldset { border: 0; padding: 0; margin: .6rem 0; display: flex; flex-wrap: wrap; gap: .3rem; align-items: center; }
legend { float: left; width: 5.5rem; padding: 0; }
button { font: inherit; padding: .1rem .6rem; border: 1px solid #888; border-radius: .3rem; background: #fff;
         cursor: pointer; }
button[aria-pressed="true"] { background: #00507d; color: #fff; border-color: #00507d; }
button:focus-visible, td:focus-visible { outline: 3px solid #d55e00; outline-offset: 1px; }
#frame { overflow: auto; margin: .8rem 0; }
table { border-collapse: collapse; }
th { font-weight: normal; white-space: nowrap; padding: .1rem .3rem; }
thead th { vertical-align: bottom; height: 6rem; }
thead th span { writing-mode: vertical-rl; transform: rotate(180deg); }
tbody th { text-align: right; }
td { width: 1.6rem; height: 1.6rem; min-width: 1.6rem; border: 1px solid #e4e4e4; padding: 0; }
#value { min-height: 1.6em; font-variant-numeric: tabular-nums; }
</style>
</head>
<body>
<h1>Attention</h1>
<p><b>Source:</b> <bdi>@SOURCE@</bdi></p>
<p><b>Target:</b> <bdi>@TARGET@</bdi></p>
<fieldset id="kinds"><legend>Kind</legend></fieldset>
<fieldset id="layers"><legend>Layer</legend></fieldset>
<fieldset id="heads"><legend>Head</legend></fieldset>
<p id="value" role="status" aria-live="polite"></p>
<div id="frame"></div>
<p>A row is a position that asks, a column a position that is looked at; the darker, the greater the weight. Each row
sums to one. In the decoder a row is named by the last token it was shown; the token that it then writes is named when
the pointer rests on a cell.</p>
<script type="application/json" id="data">@DATA@</script>
<script>
"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const state = { kind: 0, layer: 0, head: "mean" };
const shade = w => {  // white to #00507d; the square root lets small weights be seen
  const s = Math.sqrt(w), mix = (a, b) => Math.round(a + (b - a) * s);
  return `rgb(${mix(255, 0)},${mix(255, 80)},${mix(255, 125)})`;
};
const weights = () => {
  const heads = data.maps[state.kind].weights[state.layer];
  if (state.head !== "mean") return heads[state.head];
  return heads[0].map((row, q) => row.map((_, k) => heads.reduce((sum, head) => sum + head[q][k], 0) / heads.length));
};
const buttons = (id, entries, name) => {
  const box = document.getElementById(id);
  box.querySelectorAll("button").forEach(b => b.remove());
  for (const [value, label] of entries) {
    const b = document.createElement("button");
    b.type = "button";
    b.textContent = label;
    b.dataset.choice = value;
    b.setAttribute("aria-pressed", String(state[name] === value));
    b.onclick = () => {
      state[name] = value;
      if (name === "kind") { state.layer = 0; state.head = "mean"; }
      draw();
    };
    box.append(b);
  }
};
const say = (q, k, w) => {
  const map = data.maps[state.kind];
  const writes = map.kind === "encoder self-attention" ? "" : ` (then writes ${data.written[q]})`;
  document.getElementById("value").textContent = `${map.queries[q]}${writes} \u2192 ${map.keys[k]}: ${w.toFixed(4)}`;
};
function draw() {
  const map = data.maps[state.kind];
  buttons("kinds", data.maps.map((m, i) => [i, m.kind]), "kind");
  buttons("layers", map.weights.map((_, i) => [i, String(i + 1)]), "layer");
  buttons("heads", [["mean", "mean"], ...map.weights[state.layer].map((_, i) => [i, String(i + 1)])], "head");
  const table = document.createElement("table"), head = table.createTHead().insertRow();
  head.append(document.createElement("td"));
  for (const key of map.keys) {
    const cell = document.createElement("th"), text = document.createElement("span");
    cell.scope = "col";
    text.textContent = key;
    cell.append(text);
    head.append(cell);
  }
  const body = table.createTBody();
  weights().forEach((row, q) => {
    const line = body.insertRow(), name = document.createElement("th");
    name.scope = "row";
    name.textContent = map.queries[q];
    line.append(name);
    row.forEach((w, k) => {
      const cell = line.insertCell();
      cell.style.background = shade(w);
      cell.tabIndex = 0;
      cell.dataset.weight = w;
      cell.setAttribute("aria-label", `${map.queries[q]} to ${map.keys[k]}: ${w.toFixed(4)}`);
      cell.onmouseenter = cell.onfocus = () => say(q, k, w);
    });
  });
  document.getElementById("frame").replaceChildren(table);
  document.getElementById("value").textContent = "";
}
draw();
</script>
</body>
</html>
"""


def attention_page(attention: SentenceAttention) -> str:
    """The whole page; text from the sentences can neither close a tag nor run."""
    rounded = json.loads(json.dumps(attention.to_dict()), parse_float=lambda number: round(float(number), 6))
    data = json.dumps(rounded, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    values = {
        "TITLE": html.escape(attention.source),
        "SOURCE": html.escape(attention.source),
        "TARGET": html.escape(attention.target),
        "DATA": data,
    }
    # In one pass: a sentence may hold "@DATA@".
    return re.sub("@(TITLE|SOURCE|TARGET|DATA)@", lambda match: values[match[1]], _PAGE)
