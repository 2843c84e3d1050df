"""`vanilla-transformer evaluate`: scores of a model on a test set, or of translations that exist."""

from pathlib import Path
from typing import Annotated, Any

import typer

from vanilla_transformer.cli_options import (
    BatchTokens,
    Beams,
    Device,
    Int8,
    Json,
    LengthPenalty,
    Precision,
    chosen_precision,
    print_json,
)
from vanilla_transformer.configuration.errors import UsageError
from vanilla_transformer.training.command import is_main_process


def evaluate_command(
    model: Annotated[str | None, typer.Argument(metavar="MODEL", help="A model folder or Hub id.")] = None,
    reference: Annotated[
        list[Path] | None, typer.Option("--reference", help="Reference translations; repeat it for several.")
    ] = None,
    testset: Annotated[
        str | None, typer.Option("--testset", help="A test set by sacreBLEU's name, in the place of text files.")
    ] = None,
    language_pair: Annotated[str | None, typer.Option("--language-pair", help="Of --testset, such as en-de.")] = None,
    source: Annotated[Path | None, typer.Option("--source", help="Text to translate with MODEL.")] = None,
    hypotheses: Annotated[
        Path | None, typer.Option("--hypotheses", help="Translations to score, without MODEL.")
    ] = None,
    target_lang: Annotated[
        str | None, typer.Option("--target-lang", help="Decides how BLEU cuts words: zh, ja, ko. Default: the model's.")
    ] = None,
    output_dir: Annotated[
        Path | None, typer.Option("--output-dir", metavar="FOLDER", help="Keep hypotheses and results here.")
    ] = None,
    name: Annotated[
        str | None,
        typer.Option("--name", help="Name of the result files in --output-dir. Default: the test set's, or test."),
    ] = None,
    metric: Annotated[
        list[str] | None, typer.Option("--metric", help="bleu, chrf, chrf++ or ter; repeat it. Default: bleu chrf ter.")
    ] = None,
    lowercase_tokenized: Annotated[
        bool, typer.Option("--lowercase-tokenized", help="Also BLEU of lower-cased, Moses-tokenised text.")
    ] = False,
    scoring: Annotated[
        str,
        typer.Option("--scoring", help="sacrebleu, or paper: also tokenised BLEU as in Vaswani et al. 2017."),
    ] = "sacrebleu",
    tokenize: Annotated[
        str | None, typer.Option("--tokenize", help="sacreBLEU's tokenizer, instead of the language's.")
    ] = None,
    beams: Beams = None,
    length_penalty: LengthPenalty = None,
    batch_tokens: BatchTokens = 4096,
    precision: Precision = "float32",
    int8: Int8 = False,
    device: Device = None,
    json_: Json = False,
) -> None:
    """Translate a test set and score it, or score translations that exist: BLEU, chrF and TER with signatures.

    \b
    vanilla-transformer evaluate runs/base/final --source test.en --reference test.de --output-dir results
    vanilla-transformer evaluate runs/base/final --testset wmt14/full --language-pair en-de --scoring paper
    vanilla-transformer evaluate --hypotheses hyp.zh --reference ref.zh --target-lang zh --json

    Files are UTF-8, one sentence a line, plain or .gz. Scores are of exactly as many lines as the references have. A
    --testset lies in the folder $SACREBLEU (~/.sacrebleu), or is fetched into it.
    """
    if (
        bool(reference) == (testset is not None)
        or (model is None) == (hypotheses is None)
        or (source is not None) != (model is not None and testset is None)
    ):
        raise UsageError(
            "evaluate needs --reference, and either MODEL with --source or --hypotheses alone; --testset stands for "
            "--reference and --source. See evaluate --help."
        )
    if (testset is None) != (language_pair is None):
        raise UsageError("--testset and --language-pair belong together: --testset wmt14/full --language-pair en-de")
    precision = chosen_precision(precision, int8)
    from tqdm import tqdm

    from vanilla_transformer.training.evaluation import evaluate_hypotheses, evaluate_model
    from vanilla_transformer.training.named_test_sets import load_test_set
    from vanilla_transformer.training.text_files import read_lines

    # What was translated and compared, for whoever finds the result.
    details: dict[str, Any]
    if testset is not None and language_pair is not None:
        loaded = load_test_set(testset, language_pair)
        sources, references, target_lang = loaded.sources, loaded.references, target_lang or loaded.target_lang
        details = {"test_set": f"{testset} {language_pair}"}
    else:
        references = [read_lines(path) for path in reference or ()]
        sources = read_lines(source) if source is not None else []
        details = {"files": {"references": [str(path) for path in reference or ()]}}
        details["files"] |= {"source": str(source)} if source else {}
    scored: dict[str, Any] = {
        "target_lang": target_lang,
        "output_dir": output_dir,
        "name": name or details.get("test_set", "test").replace("/", "_").replace(" ", "."),
        "metrics": metric or ("bleu", "chrf", "ter"),
        "lowercase_tokenized": lowercase_tokenized,
        "tokenize": tokenize,
        "scoring": scoring,
    }
    if hypotheses is not None:
        result = evaluate_hypotheses(read_lines(hypotheses), references, **scored, details=details)
    elif model is not None:
        decoding: dict[str, Any] = {
            "num_beams": beams,
            "length_penalty": length_penalty,
            "batch_tokens": batch_tokens,
        }
        with tqdm(total=len(sources), unit="sentence", disable=not is_main_process()) as bar:
            result = evaluate_model(
                model,
                sources,
                references,
                **scored,
                **decoding,
                details=details,
                precision=precision,
                device=device,
                on_progress=bar.update,
            )
    if not is_main_process():
        return
    if json_:
        print_json(result)
    else:
        for metric_name, score in result["scores"].items():
            print(f"{metric_name} {score['score']:.2f}  {score['signature']}")
