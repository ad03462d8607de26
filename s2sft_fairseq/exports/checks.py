"""Compare an exported model with the original, as ``s2sft export`` does after each export."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from s2sft_fairseq.api.seq2seq import Seq2Seq
from s2sft_fairseq.checkpoints.model_folder import CARD
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.exports.comparison import Comparison, Logits, compare, write_comparison
from s2sft_fairseq.progress import bar, step
from s2sft_fairseq.tokenization.folder import Tokenizer
from s2sft_fairseq.tokenization.samples import ids_of, samples

_BATCH = 16


def check_transformers(
    model: Seq2Seq,
    folder: Path,
    texts: Sequence[str],
    source: Path,
    own_tokenizer: Tokenizer,
    prefix: str = "",
    load: Callable[[Path], Any] | None = None,
) -> Comparison | None:
    """Compare a model for transformers with the original, and write the result into its README.

    The exported model uses the tokenizer and the search of transformers.

    Args:
        model: the original.
        folder: the exported model.
        texts: the texts to generate from.
        source: the file of the original's weights.
        own_tokenizer: the original's tokenizer.
        prefix: the symbol that chooses the target language, put before each text.
        load: loads the exported model, if transformers lacks its class.

    Returns:
        None if transformers is not installed.

    Raises:
        UserError: they differ.
    """
    try:
        import transformers
    except ImportError:
        print(f"{folder} was not compared with the model: transformers is not installed")
        return None
    transformers.utils.logging.disable_progress_bar()
    load = load or partial(transformers.AutoModelForSeq2SeqLM.from_pretrained, dtype=torch.float32)
    with step(f"load {folder}"):
        theirs = load(folder).eval()
    # Without `config`, transformers would try to load the configuration's class itself.
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, config=theirs.config)
    # Samples cannot be equal: a model that samples is compared without.
    greedy = {"do_sample": False, "num_beams": 1} if theirs.generation_config.do_sample else {}
    special = {theirs.config.pad_token_id, theirs.config.eos_token_id, theirs.config.decoder_start_token_id}

    def laid_out(batch: Sequence[str]) -> Any:
        given = [f"{prefix} {text}" if prefix else text for text in batch]
        return tokenizer(given, return_tensors="pt", padding=True, truncation=True)

    @torch.inference_mode()
    def search(given: Sequence[str]) -> list[list[int]]:
        found = []
        for batch in bar(list(_batches(given)), program, " batches"):
            rows = theirs.generate(**laid_out(batch), **greedy).tolist()
            rows = rows[:: len(rows) // len(batch)]  # the best hypothesis of each text
            found += [[number for number in row if number not in special] for row in rows]
        return found

    @torch.inference_mode()
    def logits(text: str, ids: Sequence[int]) -> Tensor:
        given = torch.tensor([[theirs.config.decoder_start_token_id, *ids]])
        values: Tensor = theirs(**laid_out([text]), decoder_input_ids=given).logits[0]
        return values

    program = f"transformers {transformers.__version__}"
    misread = [
        text
        for text in [*texts, *samples(own_tokenizer.dictionary)]
        if tokenizer(text, add_special_tokens=False)["input_ids"] != ids_of(own_tokenizer, text)
    ]
    own_options = {"sampling": False, "beam": 1, "num_return": 1} if greedy else {}
    ours = _search_of(model, divided=False, **own_options), partial(_logits_of_one_field, model)
    return _finish(folder, source, compare(program, texts, ours[0], search, ours[1], logits, misread))


def check_engine(
    model: Seq2Seq,
    folder: Path,
    texts: Sequence[str],
    source: Path,
    program: str,
    logits: Logits | None = None,
    *,
    is_exact: bool = True,
) -> Comparison:
    """Run an engine's folder with `Seq2Seq`, compare it with the original, and write the result into its README.

    Args:
        model: the original.
        folder: the exported model.
        texts: the texts to generate from.
        source: the file of the original's weights.
        program: the engine, with its version.
        logits: the exported model's logits, if the engine returns them.
        is_exact: the weights are the original's, not rounded.

    Raises:
        UserError: they differ, although the weights are the original's.
    """
    theirs = Seq2Seq.from_pretrained(folder)
    searches = _search_of(model), _search_of(theirs)
    found = compare(program, texts, *searches, None if logits is None else model.logits, logits)
    return _finish(folder, source, found, is_exact=is_exact)


def _logits_of_one_field(model: Seq2Seq, text: str, ids: Sequence[int]) -> Tensor:
    """Return the logits along a hypothesis; a separator in the text is text."""
    return model.logits((text,), ids)


def _search_of(model: Seq2Seq, *, divided: bool = True, **options: Any) -> Callable[[Sequence[str]], list[list[int]]]:
    """Return a function that searches with a model's default options or others, and returns ids without eos.

    Args:
        model: the model.
        options: of the search, if others than the defaults of the model.
        divided: whether a separator in a text begins another field; it does not in a tokenizer for transformers.
    """

    def search(texts: Sequence[str]) -> list[list[int]]:
        sources = list(texts) if divided else [(text,) for text in texts]
        found = model.hypotheses(sources, progress=True, **options)
        return [model.ids(best[0].tokens)[:-1] if best else [] for best in found]

    return search


def _batches(texts: Sequence[str]) -> Iterator[Sequence[str]]:
    return (texts[at : at + _BATCH] for at in range(0, len(texts), _BATCH))


def _finish(folder: Path, source: Path, comparison: Comparison, *, is_exact: bool = True) -> Comparison:
    write_comparison(folder, comparison, source.stat().st_size)
    print(comparison)
    for text in comparison.differing:
        print(f"differs: {text!a}")
    if problems := comparison.problems(is_exact=is_exact):
        raise UserError.of(problems, f"{folder} is written, but differs from the model, as its {CARD} says:")
    return comparison
