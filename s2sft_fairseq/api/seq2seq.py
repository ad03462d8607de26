"""`Seq2Seq`: a trained generator in Python."""

import copy
import logging
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, overload

import numpy as np
import torch
from torch import Tensor

from s2sft_fairseq.api.by_path import LoadedByPath
from s2sft_fairseq.api.loading import Loaded, load
from s2sft_fairseq.api.passes import EncoderDecoderPass, EncoderPass
from s2sft_fairseq.api.results import Attention, Hypothesis, Score
from s2sft_fairseq.api.search_arguments import apply, named, plain, values
from s2sft_fairseq.api.streaming import stream
from s2sft_fairseq.api.texts import Text, fields_of, is_one, listed
from s2sft_fairseq.data.text_files import FIELD_SEPARATOR, split_fields
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.inference.engines import build_generator, runs_pytorch
from s2sft_fairseq.inference.files import HypothesisLines, Window
from s2sft_fairseq.inference.generator import TextGenerator, batch_planner
from s2sft_fairseq.inference.search import BeamSearch
from s2sft_fairseq.progress import sentence_progress
from s2sft_fairseq.search_bounds import MOST
from s2sft_fairseq.tokenization.statistics import unknown_warning
from s2sft_fairseq.tokenization.tokenize_files import TextTokenizer

logger = logging.getLogger(__name__)


class Seq2Seq(LoadedByPath):
    """A model that generates a target text from a source text.

    Its methods may be called from several threads: a lock lets one thread at a time use the model. Copies in several
    processes share nothing. A pickle holds the path of the model, not its weights.

    Examples:
        With a model that learned to write four letters backwards:

        >>> model.generate("a b c d")
        'd c b a'
        >>> model.generate(["a b c d", "e f g h"], beam=1)
        ['d c b a', 'h g f e']
        >>> best, second = model.hypotheses(["a b c d"], beam=2, num_return=2)[0]
        >>> best.tokens
        ['d', 'c', 'b', 'a', '[SEP]']
        >>> right, wrong = model.score(["a b c d", "a b c d"], ["d c b a", "a b c d"])
        >>> right.total > wrong.total
        True
        >>> "".join(model.stream("a b c d"))
        'd c b a'
        >>> [len(states) for states in model.encode(["a b", "a b c"])]
        [3, 4]
        >>> attention = model.attention("a b c d", "d c b a")
        >>> attention.weights.shape == (len(attention.target), len(attention.source))
        True
    """

    def __init__(self, loaded: Loaded) -> None:
        """Use `from_pretrained`."""
        self._loaded = loaded
        self._lock = threading.RLock()
        self._tokenizer = TextTokenizer(loaded.tokenizer)
        self._is_encoder_decoder = hasattr(loaded.models[0], "decoder")
        self._engine = None if runs_pytorch(loaded.models) else loaded.models[0].name

    @classmethod
    def from_pretrained(
        cls,
        path: str | os.PathLike[str],
        tokenizer: str | os.PathLike[str] | None = None,
        *,
        device: str = "auto",
        dtype: str = "auto",
        quantize: str | None = None,
    ) -> "Seq2Seq":
        """Load a model.

        Args:
            path: a model folder, or the file of a checkpoint of ``s2sft train``.
            tokenizer: for a checkpoint, the folder of the encoder that it was trained from.
            device: ``cpu``, ``cuda`` or ``auto``.
            dtype: ``float32``, ``bfloat16``, ``float16`` or ``auto``: bfloat16 on GPUs that support it, otherwise
                float32.
            quantize: ``int8`` multiplies in 8 bits on CPUs.

        Raises:
            UserError: naming every argument that is wrong, or what is wrong with the files.
        """
        model = cls(load(path, tokenizer, device, dtype, quantize))
        return model.loaded_from(path=path, tokenizer=tokenizer, device=device, dtype=dtype, quantize=quantize)

    @overload
    def generate(self, sources: str | Mapping[str, str], **options: Any) -> Any: ...
    @overload
    def generate(self, sources: Sequence[Text], **options: Any) -> list[Any]: ...
    def generate(self, sources: Any, **options: Any) -> Any:
        """Generate texts.

        Args:
            sources: one text or a list. A text may be a dict or a tuple of its fields, such as passage and answer; in
                a list of texts also a list.
            options: as for `hypotheses`.

        Returns:
            The best text for a source, or a list of the best ones if ``num_return`` is above 1. For a list of sources,
            a list with one such result per source.
        """
        several = options.get("num_return") not in (None, 1)
        found = self.hypotheses(sources, **options)
        texts = [[each.text for each in best] if several else (best[0].text if best else "") for best in found]
        return texts[0] if is_one(sources) else texts

    def hypotheses(
        self,
        sources: Any,
        *,
        batch_size: int | str = "auto",
        seed: int = 1,
        target_lang: str | None = None,
        progress: bool = False,
        numbers: Sequence[int] | None = None,
        **options: Any,
    ) -> list[list[Hypothesis]]:
        """Return the best hypotheses of each source, the best first.

        Args:
            sources: as for `generate`.
            batch_size: maximum number of sources in a batch; ``auto``: as many as memory and machine allow.
            seed: random seed for sampling. The samples of a source depend on it, on the number of the source and on the
                search arguments, but not on the other sources.
            target_lang: the language to generate, if the model has several.
            progress: show a progress bar if the error stream is a terminal.
            numbers: the number of each source for its samples; None: its index in the list.
            options: search arguments, see `s2sft_fairseq.api.search_arguments`: ``beam``, ``num_return``, ``max_len``,
                ``min_len``, ``length_penalty``, ``no_repeat_ngram``, ``sampling``, ``top_k``, ``top_p``,
                ``temperature`` and so on. The defaults are those of the model folder, or else of ``s2sft generate``.

        Raises:
            UserError: naming every argument that is wrong.
        """
        seed, batch_size = plain(seed), plain(batch_size)
        problems = [*_seed_problems(seed), *_batch_size_problems(batch_size), *self._language_problems(target_lang)]
        task, cfg = self._configured(options, problems)
        cfg.task.seed = seed
        cfg.dataset.batch_size = None if batch_size == "auto" else batch_size
        form = task.form if target_lang is None else task.form_for(target_lang)
        ids = self._ids(self._listed(sources), "sources")
        if numbers is not None and (what := _numbers_problem(numbers, len(ids))):
            raise UserError(what)
        loaded = self._loaded
        generator = self._generator(task, cfg)
        with self._lock:
            text_generator = TextGenerator(
                partial(task.inference_step, generator, loaded.models),
                form,
                batch_planner(cfg, loaded.models, task),
                nbest=cfg.generation.nbest,
                device=loaded.device,
            )
            with sentence_progress(len(ids), 0, bar=progress) as bar:
                found = text_generator(Window(0, ids, numbers), bar.update)
        _warn_of_cuts(text_generator.cut_sources, len(ids), form)
        lines = HypothesisLines(loaded.tokenizer, generator.symbols_to_strip_from_output, json_lines=False)
        return [[self._hypothesis(lines, each) for each in best] for best in found]

    def search_defaults(self) -> dict[str, Any]:
        """Return the search arguments of a call that leaves them out: of the model folder, or of ``s2sft generate``."""
        return values(self._configured({})[1])

    def score(self, sources: Sequence[Text], targets: Sequence[str], *, target_lang: str | None = None) -> list[Score]:
        """Return the probability of each target given its source, as decoding computes it.

        Args:
            sources: as for `generate`.
            targets: a text for each source.
            target_lang: the language of the targets, if the model has several.

        Raises:
            UserError: if there are not as many targets as sources, or a target is longer than this model can generate.
        """
        sources, targets = self._listed(sources), listed(targets, "targets")
        if len(sources) != len(targets):
            raise UserError(f"there must be as many targets as sources ({len(sources)}), but there are {len(targets)}")
        one_pass = self._one_pass(target_lang)
        source_ids = self._source_ids(sources, one_pass.form)
        target_ids = self._target_ids(targets, one_pass.form, "targets")
        scores = []
        with self._lock, torch.inference_mode():
            for source, target in zip(source_ids, target_ids, strict=True):
                log_probs = one_pass.log_probs(source, target).tolist()
                scores.append(Score(sum(log_probs), self._symbols(target), log_probs))
        return scores

    def stream(self, source: Text, *, seed: int = 1, **options: Any) -> Iterator[str]:
        """Yield the text generated for a source in parts, while greedy search or sampling runs.

        Joined, the parts are the text that `generate` returns with ``beam=1``.

        Args:
            source: one text, or its fields.
            seed: random seed for sampling.
            options: as for `hypotheses`.

        Raises:
            UserError: naming every argument that is wrong.
        """
        self._require_pytorch()
        if self._is_encoder_decoder:
            raise UserError("stream is for encoder-only models, but this is an encoder-decoder: use generate")
        seed = plain(seed)
        problems = _seed_problems(seed)
        for name in ("beam", "num_return"):
            if options.get(name) not in (None, 1):
                problems.append(f"stream follows one hypothesis: {name} must be 1, but is {options[name]!r:.60}")
        task, cfg = self._configured({**options, "beam": 1, "num_return": 1}, problems)
        cfg.task.seed = seed
        loaded, generator = self._loaded, self._generator(task, cfg)
        lines = HypothesisLines(loaded.tokenizer, generator.symbols_to_strip_from_output, json_lines=False)
        (ids,) = self._source_ids([source], task.form, "source")
        laid_out = torch.from_numpy(ids).unsqueeze(0).to(loaded.device)
        return stream(
            lambda: BeamSearch(loaded.models, task.form, generator.options, laid_out),
            lambda tokens: lines.text({"tokens": tokens}),
            lambda: self._lock,
        )

    def encode(self, sources: Sequence[Text], *, target_lang: str | None = None) -> list[Tensor]:
        """Return the states of the last layer for each source; for an encoder-decoder, of the encoder's last layer.

        Args:
            sources: as for `generate`.
            target_lang: the language to generate, if the model has several.

        Returns:
            For each source a float32 tensor (S, H). S: positions of the source with its special symbols, H: width.
        """
        one_pass = self._one_pass(target_lang)
        ids = self._source_ids(self._listed(sources), one_pass.form)
        with self._lock, torch.inference_mode():
            return [one_pass.states(source).float().cpu() for source in ids]

    def logits(self, source: Text, target: Sequence[int]) -> Tensor:
        """Return the logits that predict each token of a target.

        Args:
            source: one text, or its fields.
            target: the ids of the target (T - 1,), without eos.

        Returns:
            A float32 tensor (T, V). T: tokens of the target, with eos; V: symbols.

        Raises:
            UserError: if PyTorch does not run this model.
        """
        one_pass, end = self._one_pass(None), self._loaded.tokenizer.dictionary.eos()
        ids = self.source_ids(source)
        with self._lock, torch.inference_mode():
            return one_pass.logits(one_pass.form.source(ids), np.array([*target, end])).float().cpu()

    def source_ids(self, source: Text) -> np.ndarray:
        """Return the ids of a source (S,). Its only special symbols are the separators between its fields.

        Args:
            source: one text, or its fields.
        """
        (ids,) = self._ids([source], "source")
        return ids

    def ids(self, symbols: Sequence[str]) -> list[int]:
        """Return the ids of symbols of the dictionary."""
        return [self._loaded.tokenizer.dictionary.index(symbol) for symbol in symbols]

    def attention(self, source: Text, target: str, *, layer: int = -1, target_lang: str | None = None) -> Attention:
        """Return the attention from the prediction of each token of a target to the source.

        Args:
            source: one text, or its fields.
            target: the text.
            layer: index of a layer, of the decoder in an encoder-decoder; -1: the last one.
            target_lang: the language of the target, if the model has several.

        Raises:
            UserError: if there is no such layer, or the target is longer than this model can generate.
        """
        one_pass = self._one_pass(target_lang)
        layers = one_pass.num_layers
        if type(layer) is not int or not -layers <= layer < layers:
            raise UserError(f"layer must be from {-layers} to {layers - 1}, but is {layer!r:.60}")
        (ids,) = self._source_ids([source], one_pass.form, "source")
        (wanted,) = self._target_ids([target], one_pass.form, "target")
        with self._lock, torch.inference_mode():
            weights = one_pass.attention(ids, wanted, layer)
        return Attention(self._symbols(ids), self._symbols(wanted), weights.float())

    def _configured(self, options: Mapping[str, Any], problems: Sequence[str] = ()) -> tuple[Any, Any]:
        """Return copies of the task and the configuration with these options.

        Raises:
            UserError: naming ``problems`` and every option that is wrong.
        """
        cfg = copy.deepcopy(self._loaded.cfg)
        apply(cfg, self._loaded.search, options, problems)
        task = copy.copy(self._loaded.task)
        task.cfg = cfg.task
        return task, cfg

    def _source_ids(self, sources: Sequence[Any], form: Any, argument: str = "sources") -> list[np.ndarray]:
        """Return the laid-out ids of each source; warn if some are cut."""
        ids = self._ids(sources, argument)
        _warn_of_cuts(sum(len(each) + form.source_specials > form.max_source for each in ids), len(ids), form)
        return [form.source(each) for each in ids]

    def _target_ids(self, targets: Sequence[Any], form: Any, argument: str) -> list[np.ndarray]:
        """Return the laid-out ids of each target.

        Raises:
            UserError: if a target is longer than any that decoding can write.
        """
        ids, most = self._ids(targets, argument), form.max_target - 1
        if long := max((len(each) for each in ids if len(each) > most), default=0):
            raise UserError(f"{argument} must have at most {most} tokens, the limit of this model, but have {long}")
        return [form.target(each) for each in ids]

    def _listed(self, sources: Any) -> list[Any]:
        """Return sources as a list."""
        return listed(sources, "sources", self._loaded.source_names)

    def _ids(self, texts: Sequence[Any], argument: str) -> list[np.ndarray]:
        """Return the ids of each text; the only special symbols are the separators between the fields of a source."""
        is_source = argument.startswith("source")
        fields = fields_of(texts, argument, self._loaded.source_names if is_source else ())
        if is_source:
            fields = _divided(texts, fields)
        encoded = iter(self._tokenizer.encode([part for parts in fields for part in parts]))
        index = self._loaded.tokenizer.dictionary.index
        lines = [self._tokenizer.join([next(encoded) for _ in parts]) for parts in fields]
        ids = [np.array([index(symbol) for symbol in line.split()], dtype=np.int64) for line in lines]
        unknown = self._loaded.tokenizer.dictionary.unk()
        counts = [int(np.count_nonzero(each == unknown)) for each in ids]
        first = next((number for number, count in enumerate(counts) if count), None)
        if first is not None:
            example = f"{texts[first]!r:.80}, which becomes {lines[first]:.80}"
            symbols = sum(map(len, ids))
            if warning := unknown_warning(argument, sum(counts), symbols, example):
                logger.warning(warning)
        return ids

    def _hypothesis(self, lines: HypothesisLines, found: dict[str, Any]) -> Hypothesis:
        tokens = self._symbols(found["tokens"].numpy())
        return Hypothesis(lines.text(found), found["score"].item(), tokens, found["positional_scores"].tolist())

    def _generator(self, task: Any, cfg: Any) -> Any:
        try:
            return build_generator(task, self._loaded.models, cfg.generation)
        except UserError as error:
            raise named(error) from None

    def _one_pass(self, target_lang: str | None) -> EncoderPass | EncoderDecoderPass:
        self._require_pytorch()
        if problems := self._language_problems(target_lang):
            raise UserError.of(problems)
        task, model = self._loaded.task, self._loaded.models[0]
        form = task.form if target_lang is None else task.form_for(target_lang)
        if self._is_encoder_decoder:
            return EncoderDecoderPass(model, form, self._loaded.device)
        return EncoderPass(model, task, form, self._loaded.device)

    def _require_pytorch(self) -> None:
        if self._engine is not None:
            raise UserError(
                f"this is a model for {self._engine}, which can only generate: use the model that it was exported from"
            )

    def _language_problems(self, language: Any) -> list[str]:
        known = (self._loaded.state.get("layout") or {}).get("languages") or []
        if language is None or language in known:
            return []
        languages = ", ".join(known) or "it has none"
        return [f"target_lang must be a language of the model ({languages}), but is {language!r:.60}"]

    def _symbols(self, ids: np.ndarray) -> list[str]:
        symbols = self._loaded.tokenizer.dictionary.symbols
        return [symbols[number] for number in ids.tolist()]


def _divided(sources: Sequence[Any], fields: Sequence[list[str]]) -> list[list[str]]:
    """Return the fields of sources; a text, also the only one of a dict, is divided by separators as a line is."""
    result: list[list[str]] = []
    divided = 0
    for source, parts in zip(sources, fields, strict=True):
        is_text = isinstance(source, str) or (isinstance(source, Mapping) and len(parts) == 1)
        result.append(split_fields(parts[0]) if is_text else parts)
        divided += len(result[-1]) > len(parts)
    if divided:
        logger.info(f"{divided:,} of {len(result):,} sources have {FIELD_SEPARATOR}, which begins another field")
    return result


def _warn_of_cuts(cut: int, sources: int, form: Any) -> None:
    if cut:
        logger.warning(f"{cut:,} of {sources:,} sources are cut to {form.max_source} positions")


def _seed_problems(seed: Any) -> list[str]:
    if type(seed) is int and seed >= 0:
        return []
    return [f"seed must be a whole number of at least 0, but is {seed!r:.60}"]


def _batch_size_problems(size: Any) -> list[str]:
    if size == "auto" or (type(size) is int and 1 <= size <= MOST):
        return []
    return [f"batch_size must be a whole number from 1 to {MOST} or 'auto', but is {size!r:.60}"]


def _numbers_problem(numbers: Any, sources: int) -> str | None:
    """Return what is wrong with the numbers of sources, None if nothing is."""
    listed_numbers = list(numbers) if isinstance(numbers, Sequence | np.ndarray) else []
    is_right = [type(plain(number)) is int and 0 <= number < 2**63 for number in listed_numbers]
    if len(is_right) == sources and all(is_right):
        return None
    return f"numbers must be a whole number of at least 0 for each of {sources} sources, but is {numbers!r:.60}"
