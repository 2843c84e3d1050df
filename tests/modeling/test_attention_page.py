"""The page: whole in itself, safe whatever the sentence is, and worked like a reader works it, in a real browser."""

import html
import json
import re
import shutil
import subprocess

import pytest

from vanilla_transformer.modeling.attention_maps import AttentionMap, SentenceAttention
from vanilla_transformer.modeling.attention_page import attention_page

CROSS = AttentionMap(
    kind="cross-attention",
    queries=["<s>", "电"],
    keys=["␣low", "</s>"],
    weights=[[[[0.25, 0.75], [1.0, 0.0]], [[0.5, 0.5], [0.125, 0.875]]], [[[0.1, 0.9], [0.2, 0.8]]] * 2],
)
ENCODER = AttentionMap("encoder self-attention", ["␣low", "</s>"], ["␣low", "</s>"], [[[[0.6, 0.4], [0.3, 0.7]]] * 2])
ATTENTION = SentenceAttention("low </script><script>alert(1)</script> @DATA@", "电", ["电", "</s>"], [ENCODER, CROSS])

CLICKS = """
<script>
const all = selector => [...document.querySelectorAll(selector)];
const press = (box, label) => all(`#${box} button`).find(b => b.textContent === label).click();
const read = (q, k) => {
  const cell = all("tbody tr")[q].querySelectorAll("td")[k];
  cell.dispatchEvent(new MouseEvent("mouseenter"));
  return [Number(cell.dataset.weight), document.getElementById("value").textContent];
};
const seen = { mean_first: read(0, 1) };
press("kinds", "cross-attention");
seen.mean = read(1, 0);
press("heads", "2");
seen.head_2 = read(1, 1);
press("layers", "2");
press("heads", "1");
seen.layer_2 = read(0, 1);
seen.pressed = all('[aria-pressed="true"]').map(b => b.textContent);
document.body.insertAdjacentHTML("beforeend", `<pre id="seen"></pre>`);
document.getElementById("seen").textContent = JSON.stringify(seen);
</script>
"""


def test_the_data_are_in_the_page_and_nothing_is_fetched():
    page = attention_page(ATTENTION)
    data = re.search('<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)[1]
    assert json.loads(data)["maps"][1]["weights"] == CROSS.weights
    assert not re.search(r"(src|href)=|https?://|@import|url[(]", page)


def test_a_sentence_cannot_leave_its_place():
    page = attention_page(ATTENTION)
    assert page.count("</script>") == 2
    assert "alert(1)" in page and "<script>alert" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt; @DATA@</bdi>" in page


@pytest.mark.integration
def test_a_browser_shows_the_layer_and_head_that_are_clicked(tmp_path):
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("needs chromium (Debian: apt install chromium)")
    page = tmp_path / "page.html"
    page.write_text(attention_page(ATTENTION).replace("</body>", CLICKS + "</body>"), encoding="utf-8")
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}/profile"]
    done = subprocess.run(
        [*command, "--dump-dom", page.as_uri()], capture_output=True, text=True, encoding="utf-8", timeout=120
    )
    [*_, text] = re.findall('<pre id="seen">(.*?)</pre>', done.stdout)  # the first stands in the script
    seen = json.loads(html.unescape(text))
    assert seen["mean_first"] == [0.4, "␣low → </s>: 0.4000"]
    assert seen["mean"] == [(1.0 + 0.125) / 2, "电 (then writes </s>) → ␣low: 0.5625"]
    assert seen["head_2"] == [0.875, "电 (then writes </s>) → </s>: 0.8750"]
    assert seen["layer_2"] == [0.9, "<s> (then writes 电) → </s>: 0.9000"]
    assert seen["pressed"] == ["cross-attention", "2", "1"]
