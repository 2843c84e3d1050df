"""Exit codes, streams and messages of the command line, and its verbs on a model whose translations are known."""

import json
import math
import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

VERBS = ("prepare", "train", "finetune", "average", "evaluate", "translate", "score", "compare")


def start(*arguments: object, **options: object) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "vanilla_transformer", *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)  # type: ignore[call-overload]


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_shows_an_example_that_names_it(cli, verb: str):
    result = cli(verb, "--help")
    assert result.code == 0
    assert f"vanilla-transformer {verb} " in result.out


def test_help_lists_the_verbs_and_loads_nothing_heavy():
    code = """
import sys
from vanilla_transformer.cli import main
try:
    main(["--help"])
except SystemExit as ended:
    assert not ended.code
heavy = {"torch", "transformers", "datasets", "numpy", "sacrebleu", "pandas"} & set(sys.modules)
assert not heavy, heavy
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    for verb in VERBS:
        assert f"\n  {verb} " in done.stdout


@pytest.mark.integration
def test_help_takes_less_than_half_a_second():
    def seconds() -> float:
        # Time on the processor: what else the machine is doing is not the program's.
        before = os.times()
        subprocess.run([sys.executable, "-m", "vanilla_transformer", "--help"], capture_output=True, check=True)
        after = os.times()
        return after.children_user + after.children_system - before.children_user - before.children_system

    assert min(seconds() for _ in range(3)) < 0.5


def test_version(cli):
    from importlib.metadata import version

    assert cli("--version").out == f"vanilla-transformer {version('vanilla-transformer')}\n"


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["nonsense"], "No such command 'nonsense'"),
        (["train"], "Missing argument"),
        (["train", "absent.yaml"], "Missing option '--output-dir'"),
        (["train", "absent.yaml", "--output-dir", "x"], "recipe absent.yaml: no such file"),
        (["prepare", "absent.yaml", "--output-dir", "x"], "recipe absent.yaml: no such file"),
        (["train", "absent.yaml", "--output-dir", "x", "--sett", "a=b"], "--sett"),
        (["translate"], "Missing argument"),
        (["translate", "m", "--nbest", "0"], "--nbest"),
        (["translate", "m", "--int8", "--precision", "bfloat16"], "--int8 takes the place of --precision bfloat16"),
        (["translate", "m", "--int8", "--device", "cuda"], "int8 is for the CPU"),
        (["average", "a", "b", "--last", "2", "--output", "c"], "average --last takes one RUN"),
        (["evaluate"], "evaluate needs --reference"),
        (["evaluate", "m", "--reference", "r"], "evaluate needs --reference"),
        (["evaluate", "m", "--source", "s", "--hypotheses", "h", "--reference", "r"], "evaluate needs --reference"),
        (["evaluate", "--source", "s", "--hypotheses", "h", "--reference", "r"], "evaluate needs --reference"),
        (
            ["evaluate", "m", "--source", "s", "--reference", "r", "--int8", "--precision", "bfloat16"],
            "--int8 takes the place of --precision bfloat16",
        ),
        (["evaluate", "m", "--source", "s", "--testset", "wmt14"], "evaluate needs --reference"),
        (["evaluate", "m", "--reference", "r", "--testset", "wmt14"], "evaluate needs --reference"),
        (["evaluate", "m", "--testset", "wmt14"], "--testset and --language-pair belong together"),
    ],
)
def test_wrong_usage_is_exit_2_and_one_message(cli, arguments: list[str], part: str, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = cli(*arguments)
    assert result.code == 2
    assert part in result.err
    assert "Traceback" not in result.err
    assert result.out == ""
    assert list(tmp_path.iterdir()) == []


def test_a_recipes_problems_are_exit_2_with_the_nearest_key(cli, tmp_path: Path):
    recipe = tmp_path / "my.yaml"
    recipe.write_text("data: {corpus: reverse, source_lang: a, target_lang: b}\nmodel: {d_model: 100, num_heads: 6}\n")
    result = cli("train", recipe, "--output-dir", tmp_path / "run", "--set", "training.max_step=3")
    assert result.code == 2
    head, *lines = result.err.splitlines()
    assert head == "recipe my.yaml: 2 problems"
    assert "  training.max_step = 3: unknown key; did you mean training.max_steps?" in lines
    assert any(line.startswith("  model.num_heads = 6: ") for line in lines)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["evaluate", "--hypotheses", "absent.de", "--reference", "two.de"], "absent.de"),
        (["evaluate", "--hypotheses", "three.de", "--reference", "two.de"], "3"),
        (["score", "m", "--source", "absent.en", "--target", "two.de"], "absent.en"),
        (["translate", "./absent-model"], "absent-model: no such model folder."),
        (["average", "run", "--last", "2", "--output", "c"], "run has 0 checkpoints (none), and --last asks for 2."),
        (["average", "two.de", "--output", "c"], "two.de"),
    ],
)
def test_what_cannot_be_done_is_exit_1_and_names_the_file(cli, arguments: list[str], part: str, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "two.de").write_text("eins\nzwei\n")
    (tmp_path / "three.de").write_text("eins\nzwei\ndrei\n")
    result = cli(*arguments)
    assert (result.code, result.out) == (1, "")
    assert part in result.err
    assert "Traceback" not in result.err


def test_scoring_files_agrees_with_bleu_by_hand(cli, tmp_path: Path):
    # 4 of 5 words; 2 of 4 pairs (das ist, ist ein); 1 of 3 triples; 0 of 2 quadruples, which exponential smoothing
    # counts as 1 of 4; no brevity penalty.
    (tmp_path / "hyp.de").write_text("das ist ein kleines haus\n")
    (tmp_path / "ref.de").write_text("das ist ein haus haus\n")
    arguments = (
        "evaluate",
        "--hypotheses",
        tmp_path / "hyp.de",
        "--reference",
        tmp_path / "ref.de",
        "--metric",
        "bleu",
    )
    expected = 100 * (4 / 5 * 2 / 4 * 1 / 3 * 1 / 4) ** 0.25
    scores = json.loads(cli(*arguments, "--json").out)["scores"]
    assert scores["bleu"]["score"] == pytest.approx(expected)
    line = cli(*arguments).out
    assert line == f"bleu {expected:.2f}  {scores['bleu']['signature']}\n"
    assert "tok:13a" in line


def test_chinese_is_cut_as_chinese_only_where_the_language_is_named(cli, tmp_path: Path):
    for name in ("hyp.zh", "ref.zh"):
        (tmp_path / name).write_text("连接到这个新的设备\n", encoding="utf-8")
    arguments = ("evaluate", "--hypotheses", tmp_path / "hyp.zh", "--reference", tmp_path / "ref.zh")
    assert "bleu 100.00  " in cli(*arguments, "--target-lang", "zh").out
    assert "bleu 100.00  " not in cli(*arguments).out


@pytest.mark.integration
class TestOnATrainedModel:
    def test_training_leaves_what_was_promised(self, trained):
        assert trained.stdout.splitlines()[-1] == str(Path("run") / "final")
        assert "tok:zh" in trained.stdout
        for name in ("recipe.yaml", "manifest.json", "metrics.jsonl", "checkpoints", "final/config.json"):
            assert (trained.run / name).exists()

    def test_a_run_that_exists_is_not_overwritten(self, cli, trained, monkeypatch):
        monkeypatch.chdir(trained.folder)
        before = (trained.run / "metrics.jsonl").read_bytes()
        result = cli("train", "memorise.yaml", "--output-dir", "run")
        assert result.code == 2
        assert "--resume" in result.err
        assert (trained.run / "metrics.jsonl").read_bytes() == before

    def test_translate_answers_line_for_line(self, cli, trained):
        sources, targets = list(trained.pairs), list(trained.pairs.values())
        stdin = "\n".join([*sources, "", sources[0]]).encode()  # no newline at the end
        result = cli("translate", trained.run / "final", stdin=stdin)
        assert result.code == 0
        assert result.out == "".join(f"{line}\n" for line in [*targets, "", targets[0]])

    def test_only_newlines_end_a_line(self, cli, trained):
        stdin = "no .\r\nunknown\u2028unknown\x0cunknown\nunknown\n".encode()
        result = cli("translate", trained.run / "final", "--beams", "1", stdin=stdin)
        lines = result.out.split("\n")
        assert len(lines) == 4
        assert (lines[0], lines[2], lines[3]) == ("否 。", "未知", "")

    def test_no_input_gives_no_output(self, cli, trained):
        assert vars(cli("translate", trained.run / "final")) | {"err": ""} == {"code": 0, "out": "", "err": ""}

    def test_bytes_that_are_no_text_are_named_by_line(self, cli, trained):
        result = cli("translate", trained.run / "final", "--chunk-lines", "1", stdin=b"no .\nK\xf6ln\n")
        assert result.code == 1
        assert "stdin:2: not valid UTF-8 (byte 0xf6 at column 2)" in result.err
        assert result.out == "否 。\n"

    def test_nbest_and_scores_are_columns(self, cli, trained):
        stdin = b"unknown\n\nno .\n"
        result = cli("translate", trained.run / "final", "--beams", "3", "--nbest", "2", "--scores", stdin=stdin)
        rows = [line.split("\t") for line in result.out.splitlines()]
        assert [row[0] for row in rows] == ["1", "1", "2", "3", "3"]
        assert [rows[0][2], rows[2][2], rows[3][2]] == ["未知", "", "否 。"]
        assert float(rows[0][1]) >= float(rows[1][1])
        scored = cli("translate", trained.run / "final", "--beams", "3", "--scores", stdin=stdin)
        assert scored.out.splitlines() == ["\t".join(row[1:]) for row in (rows[0], rows[2], rows[3])]
        plain = cli("translate", trained.run / "final", "--beams", "3", "--nbest", "1", stdin=stdin)
        assert plain.out == "1\t未知\n2\t\n3\t否 。\n"

    def test_a_score_is_the_log_probability_over_the_length_penalty(self, cli, trained, tmp_path):
        (tmp_path / "source").write_text("no .\n", encoding="utf-8")
        (tmp_path / "target").write_text("否 。\n", encoding="utf-8")
        pair = ("--source", tmp_path / "source", "--target", tmp_path / "target")
        log_probability = float(cli("score", trained.run / "final", *pair).out)
        # three tokens with </s>; GNMT's penalty ((5 + 3) / 6) ** alpha, alpha 0.6 and 1
        for alpha, flags in ((0.6, ()), (1.0, ("--length-penalty", "1.0"))):
            result = cli("translate", trained.run / "final", "--scores", *flags, stdin=b"no .\n")
            assert float(result.out.split("\t")[0]) == pytest.approx(log_probability / ((5 + 3) / 6) ** alpha, abs=2e-4)
        per_token = json.loads(cli("score", trained.run / "final", *pair, "--per-token", "--json").out)
        assert per_token == pytest.approx([log_probability / 3], abs=1e-5)
        assert math.exp(log_probability) < 1

    def test_json_lines(self, cli, trained):
        result = cli("translate", trained.run / "final", "--json", stdin=b"no .\nunknown\n")
        rows = [json.loads(line) for line in result.out.splitlines()]
        assert [(row["line"], row["source"]) for row in rows] == [(1, "no ."), (2, "unknown")]
        assert [row["translations"][0]["text"] for row in rows] == ["否 。", "未知"]

    def test_a_prefix_begins_the_translation(self, cli, trained):
        result = cli("translate", trained.run / "final", "--prefix", "电池", stdin=b"the battery is low .\nno .\n")
        first, second = result.out.splitlines()
        assert first == "电池 电量 低 。"
        assert second.startswith("电池")

    def test_evaluate_keeps_hypotheses_and_results(self, cli, trained, tmp_path):
        (tmp_path / "source").write_text("".join(f"{line}\n" for line in trained.pairs), encoding="utf-8")
        (tmp_path / "target").write_text("".join(f"{line}\n" for line in trained.pairs.values()), encoding="utf-8")
        files = ("--source", tmp_path / "source", "--reference", tmp_path / "target", "--output-dir", tmp_path / "out")
        result = cli("evaluate", trained.run / "final", *files, "--name", "six")
        assert result.code == 0
        assert "bleu 100.00  nrefs:1|" in result.out  # the language is the model's: tok:zh
        assert "tok:zh" in result.out
        assert (tmp_path / "out" / "six.hypotheses.txt").read_bytes() == (tmp_path / "target").read_bytes()
        kept = json.loads((tmp_path / "out" / "six.json").read_text(encoding="utf-8"))
        assert kept["sentences"] == 6
        assert kept["scores"]["bleu"]["score"] == pytest.approx(100)

    def test_average_of_the_last_checkpoints(self, cli, trained, tmp_path):
        from safetensors.torch import load_file

        result = cli("average", trained.run, "--last", "2", "--output", tmp_path / "mean")
        assert result.out == f"{tmp_path / 'mean'}\n"
        mean = load_file(tmp_path / "mean" / "model.safetensors")
        parts = [load_file(trained.run / "checkpoints" / f"step-{n}" / "model.safetensors") for n in (100, 150)]
        for name, weight in mean.items():
            assert weight.numpy() == pytest.approx((parts[0][name].numpy() + parts[1][name].numpy()) / 2, abs=1e-6)
        again = cli("average", trained.run, "--last", "2", "--output", tmp_path / "mean")
        assert (again.code, again.out) == (2, "")
        too_many = cli("average", trained.run, "--last", "9", "--output", tmp_path / "other")
        assert too_many.code == 1
        assert "step-50, step-100, step-150" in too_many.err

    def test_prepare_counts_every_pair(self, cli, trained, tmp_path, monkeypatch):
        monkeypatch.chdir(trained.folder)
        counters = json.loads(cli("prepare", "memorise.yaml", "--output-dir", tmp_path / "run", "--json").out)
        assert counters["train"]["read"] == counters["train"]["kept"] == len(trained.pairs)

    def test_a_reader_that_leaves_is_no_error_message(self, trained):
        process = start("translate", trained.run / "final", "--beams", "1", stdin=subprocess.PIPE)
        assert process.stdin and process.stdout and process.stderr
        process.stdout.close()
        process.stdin.write(b"no .\n" * 5000)
        process.stdin.close()
        assert process.wait(timeout=300) != 0
        assert b"Traceback" not in (message := process.stderr.read()), message
        assert b"BrokenPipe" not in message, message

    def test_an_interrupt_is_exit_130_without_a_traceback(self, trained):
        # Whoever starts the tests in the background may have had SIGINT ignored, and ignoring is inherited.
        heed = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
        folder = trained.run / "final"
        process = start("translate", folder, "--chunk-lines", "1", stdin=subprocess.PIPE, preexec_fn=heed)
        assert process.stdin and process.stdout and process.stderr
        process.stdin.write(b"no .\n")
        process.stdin.flush()
        assert process.stdout.readline().decode() == "否 。\n"  # answered while stdin is open
        os.kill(process.pid, signal.SIGINT)
        assert process.wait(timeout=300) == 130
        message = process.stderr.read()
        assert b"Traceback" not in message and b"Fatal" not in message, message
