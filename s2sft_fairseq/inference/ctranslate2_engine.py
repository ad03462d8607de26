"""Beam search of encoder-decoders in CTranslate2, with results in fairseq's form."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from s2sft_fairseq.checkpoints.model_folder import read_config
from s2sft_fairseq.data.dictionary import DICTIONARY, PretrainedDictionary
from s2sft_fairseq.errors import UserError, as_option, package
from s2sft_fairseq.inference.ctranslate2_folder import check_folder
from s2sft_fairseq.inference.hypotheses import hypotheses
from s2sft_fairseq.inference.options import UNSUPPORTED, early_stop, search_problems
from s2sft_fairseq.received import part
from s2sft_fairseq.search_bounds import too_short

NAME = "ctranslate2"
# Search options that CTranslate2 does not support, with the value that disables them.
_OFF = {**UNSUPPORTED, "sampling": False, "temperature": 1.0, "score_reference": False, "prefix_size": 0}
_NO_PENALTY = 1e-9


def open_ctranslate2(folder: Path) -> "CTranslate2Engine":
    """Open a folder that ``s2sft export --format ctranslate2`` wrote, on the CPU, with as many threads as PyTorch has.

    Raises:
        UserError: if CTranslate2 is not installed, cannot read the files, or would read them as another model.
    """
    library = package("ctranslate2", str(folder))
    dictionary = PretrainedDictionary.load(str(part(folder / DICTIONARY)))
    config = read_config(folder)
    check_folder(folder, config, dictionary)
    try:
        translator = library.Translator(str(folder), device="cpu", intra_threads=torch.get_num_threads())
    except (RuntimeError, ValueError) as error:
        raise UserError(f"{folder} cannot be read by ctranslate2: {error}") from None
    return CTranslate2Engine(translator)


class CTranslate2Engine:
    """A model in CTranslate2's format."""

    name = NAME

    def __init__(self, translator: Any) -> None:
        self.translator = translator

    def build_generator(self, task: Any, args: Any) -> "CTranslate2Generator":
        """Return the generator; see `Engine`."""
        return CTranslate2Generator(self.translator, task, args)


class CTranslate2Generator:
    """Beam search with the options of ``s2sft generate``.

    CTranslate2 ends the search for a sentence when ``patience * beam`` hypotheses have ended, and keeps all of them.
    So ``exact`` and ``never`` search to the maximum length. CTranslate2 does not force eos there: a hypothesis without
    eos is cut at the maximum length, and the eos is added and scored. A second pass over each hypothesis computes all
    scores, because CTranslate2 renormalizes the probabilities where it forbids a token.

    N: sentences, S: source positions, T: tokens of a hypothesis.
    """

    def __init__(self, translator: Any, task: Any, args: Any) -> None:
        """Check and store the options.

        Raises:
            UserError: naming every option that is not supported or out of range.
        """
        if problems := _problems(args, task):
            raise UserError.of(problems)
        self.translator, self.args, self.form = translator, args, task.form
        self.dictionary = task.dictionary
        self.most = task.max_target_of_model - 1
        self.stops_at_beam = early_stop(args, task.cfg) == "fairseq"
        self.lenpen = 0.0 if args.unnormalized else args.lenpen
        self.symbols_to_strip_from_output = {self.form.eos}

    def generate(
        self,
        models: Any,
        sample: dict[str, Any],
        prefix_tokens: Tensor | None = None,
        constraints: Tensor | None = None,
    ) -> list[list[dict[str, Any]]]:
        """Generate, as fairseq's generators do.

        Args:
            models: not used.
            sample: a batch with ``src_tokens`` (N, S) in its ``net_input``: laid-out sources, padded on the right.
            prefix_tokens: not supported.
            constraints: not supported.

        Returns:
            The ``--nbest`` hypotheses of each sentence, the best first: ``tokens`` (T) with eos, normalized ``score``
            and ``positional_scores`` (T), both natural logarithms.
        """
        args, source = self.args, sample["net_input"]["src_tokens"]
        max_len = min(int(args.max_len_a * source.size(1) + args.max_len_b), self.most)
        if max_len < args.min_len:
            raise UserError(too_short(args, max_len, source.size(1)))
        symbols = self.dictionary.symbols
        sources = [[symbols[number] for number in row if number != self.form.pad] for row in source.tolist()]
        # Without a penalty CTranslate2 may end with the first eos, before it finds a better second hypothesis.
        penalty = self.lenpen or (_NO_PENALTY if args.nbest > 1 else 0.0)
        results = self._run(
            self.translator.translate_batch,
            sources,
            beam_size=args.beam,
            num_hypotheses=args.nbest,
            patience=1 if self.stops_at_beam or args.beam == 1 else max_len + 2,
            length_penalty=penalty,
            no_repeat_ngram_size=args.no_repeat_ngram_size,
            suppress_sequences=[[symbols[self.form.pad]]],
            max_input_length=0,
            min_decoding_length=args.min_len,
            max_decoding_length=max_len + 1,
        )
        # `_hypothesis` adds the eos, also to a hypothesis that has max_len tokens and none of its own.
        found = [list(dict.fromkeys(tuple(each[:max_len]) for each in result.hypotheses)) for result in results]
        return self._scored(sources, found)

    def _run(self, method: Any, *arguments: Any, **options: Any) -> Any:
        """Call a method of the translator.

        Raises:
            UserError: CTranslate2 cannot run the model.
        """
        try:
            return method(*arguments, **options)
        except (RuntimeError, ValueError) as error:
            raise UserError(f"the model cannot be run by {NAME}: {error}") from None

    def _scored(
        self, sources: Sequence[Sequence[str]], found: Sequence[Sequence[tuple[str, ...]]]
    ) -> list[list[dict[str, Any]]]:
        """Score hypotheses, given as symbols without eos, and return them in fairseq's form, the best first."""
        pairs = [(source, list(each)) for source, best in zip(sources, found, strict=True) for each in best]
        of_pairs = [[source for source, _ in pairs], [target for _, target in pairs]]
        scored = iter(self._run(self.translator.score_batch, *of_pairs, max_input_length=0))
        results = []
        for best in found:
            of_sentence = [self._hypothesis(target, next(scored).log_probs) for target in best]
            results.append(sorted(of_sentence, key=lambda each: float(each["score"]), reverse=True))
        return results

    def _hypothesis(self, target: Sequence[str], log_probs: Sequence[float]) -> dict[str, Any]:
        tokens = torch.tensor([[*map(self.dictionary.index, target), self.form.eos]])
        scores = torch.tensor(log_probs, dtype=torch.float32)[None]
        length = tokens.size(1)
        score = scores.sum() / length**self.lenpen
        (found,) = hypotheses(score[None], torch.tensor([length]), tokens, scores)
        return found


def _problems(args: Any, task: Any) -> list[str]:
    found = [
        f"{as_option(name)} is not supported by {NAME}, but is {getattr(args, name)}: leave it out, or use the model "
        "that was exported"
        for name, off in _OFF.items()
        if getattr(args, name, off) != off
    ]
    found += search_problems(args, task.cfg, task.max_target_of_model - 1)
    if 2 * args.beam > len(task.dictionary):
        found.append(f"--beam must be at most half of the {len(task.dictionary)} symbols, but is {args.beam}")
    return found
