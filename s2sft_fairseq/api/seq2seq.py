"""`Seq2Seq`: a trained generator in Python."""

import contextlib
import copy
import os
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, overload

import numpy as np
import torch
from torch import Tensor

from s2sft_fairseq.api.loading import Loaded, load
from s2sft_fairseq.api.results import Attention, Hypothesis, Score, attention_weights
from s2sft_fairseq.api.search_arguments import apply, named

# isort: split
from fairseq import utils

from s2sft_fairseq.data.packed_dataset import model_input
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.inference.files import HypothesisLines, Window, sentence_progress
from s2sft_fairseq.inference.generator import TextGenerator, batch_planner, window_seed
from s2sft_fairseq.inference.hypotheses import ReferenceScorer
from s2sft_fairseq.inference.search import BeamSearch
from s2sft_fairseq.modules.visibility import PackedColumns
from s2sft_fairseq.objectives.packing import collate
from s2sft_fairseq.objectives.ragged import Ragged
from s2sft_fairseq.tokenization.tokenize_files import TextTokenizer

Text = str | Mapping[str, str] | Sequence[str]
"""A source: a text, or its fields."""

_RANDOM = threading.Lock()  # PyTorch has one generator of random numbers for all threads


class Seq2Seq:
    """A model that writes a text for a text.

    Methods may be called from several threads: they take turns. Copies in several processes share nothing.
    """

    def __init__(self, loaded: Loaded) -> None:
        """Use `from_pretrained`."""
        self._loaded = loaded
        self._lock = threading.RLock()
        self._tokenizer = TextTokenizer(loaded.tokenizer)

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
            dtype: ``float32``, ``bfloat16``, ``float16`` or ``auto``: bfloat16 on GPUs that have it, otherwise float32.
            quantize: ``int8`` multiplies in 8 bits on CPUs.

        Raises:
            UserError: naming every argument that is wrong, or what is wrong with the files.
        """
        return cls(load(path, tokenizer, device, dtype, quantize))

    @overload
    def generate(self, sources: str | Mapping[str, str], **options: Any) -> Any: ...
    @overload
    def generate(self, sources: Sequence[Text], **options: Any) -> list[Any]: ...
    def generate(self, sources: Any, **options: Any) -> Any:
        """Write texts.

        Args:
            sources: one text or several. A text may be a dict or a list of its fields, such as passage and answer.
            options: as for `hypotheses`.

        Returns:
            The best text of a source, or with ``num_return`` above 1 a list of the best ones; of a list of sources a
            list of these.
        """
        several = options.get("num_return") not in (None, 1)
        found = self.hypotheses(sources, **options)
        texts = [[each.text for each in best] if several else (best[0].text if best else "") for best in found]
        return texts[0] if _is_one(sources) else texts

    def hypotheses(
        self,
        sources: Any,
        *,
        batch_size: int | str = "auto",
        seed: int = 1,
        target_lang: str | None = None,
        progress: bool = False,
        **options: Any,
    ) -> list[list[Hypothesis]]:
        """Return the best hypotheses of each source, the best first.

        Args:
            sources: as for `generate`.
            batch_size: most sources that are generated from together; ``auto``: as many as memory and machine allow.
            seed: of samples.
            target_lang: the language to write, where the model has several.
            progress: show a progress bar where the error stream is a terminal.
            options: of the search, by the names of `s2sft_fairseq.api.search_arguments`: ``beam``, ``num_return``,
                ``max_len``, ``min_len``, ``length_penalty``, ``no_repeat_ngram``, ``sampling``, ``top_k``, ``top_p``,
                ``temperature`` and so on. Others are those of the model folder, or else of ``s2sft generate``.

        Raises:
            UserError: naming every argument that is wrong.
        """
        texts = _listed(sources)
        task, cfg = self._configured(options)
        _check_seed(seed)
        if batch_size != "auto":
            if type(batch_size) is not int or batch_size < 1:
                raise UserError(f"batch_size must be a whole number of at least 1 or 'auto', but is {batch_size!r:.60}")
            cfg.dataset.batch_size = batch_size
        form = task.form if target_lang is None else self._form_for(task, target_lang)
        ids = self._ids(texts)
        loaded = self._loaded
        generator = self._generator(task, cfg)
        with self._turn(cfg.generation.sampling):
            text_generator = TextGenerator(
                partial(task.inference_step, generator, loaded.models),
                form,
                batch_planner(cfg, loaded.models, task),
                nbest=cfg.generation.nbest,
                seed=seed,
                device=loaded.device,
            )
            with sentence_progress(len(ids), 0, bar=progress) as bar:
                found = text_generator(Window(0, ids), bar.update)
        lines = HypothesisLines(loaded.tokenizer, generator.symbols_to_strip_from_output, json_lines=False)
        return [[self._hypothesis(lines, each) for each in best] for best in found]

    def score(self, sources: Sequence[Text], targets: Sequence[str]) -> list[Score]:
        """Return how probable each target is for its source, as decoding would have it.

        Args:
            sources: as for `generate`.
            targets: a text for each source.

        Raises:
            UserError: if there are not as many targets as sources, or the model is an encoder-decoder.
        """
        sources, targets = _listed(sources), _listed(targets)
        if len(sources) != len(targets):
            raise UserError(f"targets must be as many as sources, {len(sources)}, but are {len(targets)}")
        task, _ = self._configured({})
        self._needs_encoder("score")
        scorer = ReferenceScorer(self._loaded.models, task.form, task.objective)
        symbols = self._loaded.tokenizer.dictionary.symbols
        scores = []
        with self._lock:
            for source, target in zip(self._ids(sources), self._ids(targets), strict=True):
                laid_out = torch.from_numpy(task.form.source(source)).unsqueeze(0).to(self._loaded.device)
                wanted = torch.from_numpy(np.append(target, task.form.sep)).unsqueeze(0).to(self._loaded.device)
                sample = {"net_input": {"src_tokens": laid_out}, "target": wanted}
                ((found,),) = scorer.generate(self._loaded.models, sample)
                log_probs = found["positional_scores"].tolist()
                tokens = [symbols[number] for number in found["tokens"].tolist()]
                scores.append(Score(sum(log_probs), tokens, log_probs))
        return scores

    def stream(self, source: Text, *, seed: int = 1, **options: Any) -> Iterator[str]:
        """Yield the text of a source piece by piece, as greedy search or sampling finds it.

        The pieces together are what `generate` returns with ``beam=1``.

        Args:
            source: one text, or its fields.
            seed: of a sample.
            options: as for `hypotheses`.

        Raises:
            UserError: naming every argument that is wrong.
        """
        self._needs_encoder("stream")
        _check_seed(seed)
        for name in ("beam", "num_return"):
            if options.get(name) not in (None, 1):
                raise UserError(f"stream follows one hypothesis: {name} must be 1, but is {options[name]!r:.60}")
        task, cfg = self._configured({**options, "beam": 1, "num_return": 1})
        return self._stream(task, cfg, self._ids([source])[0], seed)

    def encode(self, sources: Sequence[Text]) -> list[Tensor]:
        """Return the states of the last layer for each source.

        Args:
            sources: as for `generate`.

        Returns:
            For each source a float32 tensor (S, H). S: positions of the source with its special symbols, H: width.

        Raises:
            UserError: if the model is an encoder-decoder.
        """
        self._needs_encoder("encode")
        task, _ = self._configured({})
        states = []
        with self._lock, torch.inference_mode():
            for ids in self._ids(_listed(sources)):
                columns = self._source_columns(task.form, task.form.source(ids))
                states.append(self._loaded.models[0].encode(columns).float().cpu())
        return states

    def attention(self, source: Text, target: str, *, layer: int = -1) -> Attention:
        """Return what the prediction of each token of a target attends to in the source.

        Args:
            source: one text, or its fields.
            target: the text.
            layer: its index; -1: the last one.

        Raises:
            UserError: if there is no such layer, or the model is an encoder-decoder.
        """
        self._needs_encoder("attention")
        task, _ = self._configured({})
        model, form = self._loaded.models[0], task.form
        if type(layer) is not int or not -len(model.layers) <= layer < len(model.layers):
            raise UserError(f"layer must be from {-len(model.layers)} to {len(model.layers) - 1}, but is {layer!r:.60}")
        ids = form.source(self._ids([source])[0])
        wanted = form.target(self._ids([target])[0])
        batch = collate([task.objective.reference(Ragged.of([ids]), Ragged.of([wanted]), form)])
        columns: Any = utils.apply_to_sample(lambda column: column.to(self._loaded.device), model_input(batch))
        labelled = torch.from_numpy(batch.label != form.pad)
        with self._lock, torch.inference_mode():
            weights = attention_weights(model, PackedColumns(**columns), layer)
        symbols = self._loaded.tokenizer.dictionary.symbols
        return Attention(
            [symbols[number] for number in ids.tolist()],
            [symbols[number] for number in batch.label[labelled.numpy()].tolist()],
            weights[labelled][:, : len(ids)].float(),
        )

    def _configured(self, options: Mapping[str, Any]) -> tuple[Any, Any]:
        """Return the task and the configuration with these options."""
        cfg = copy.deepcopy(self._loaded.cfg)
        apply(cfg, self._loaded.search, options)
        task = copy.copy(self._loaded.task)
        task.cfg = cfg.task
        return task, cfg

    def _ids(self, texts: Sequence[Any]) -> list[np.ndarray]:
        """Return the ids of each source, without special symbols but for the one between fields."""
        fields, counts = [], []
        for number, text in enumerate(texts):
            listed = text.values() if isinstance(text, Mapping) else text
            parts = [text] if isinstance(text, str) else list(listed) if isinstance(listed, Iterable) else []
            if not parts or not all(isinstance(part, str) for part in parts):
                raise UserError(f"sources[{number}] must be a text, or a dict or a list of texts, but is {text!r:.60}")
            fields += parts
            counts.append(len(parts))
        encoded = iter(self._tokenizer.encode(fields))
        index = self._loaded.tokenizer.dictionary.index
        lines = (self._tokenizer.join([next(encoded) for _ in range(count)]) for count in counts)
        return [np.array([index(symbol) for symbol in line.split()], dtype=np.int64) for line in lines]

    def _hypothesis(self, lines: HypothesisLines, found: dict[str, Any]) -> Hypothesis:
        symbols = self._loaded.tokenizer.dictionary.symbols
        tokens = [symbols[number] for number in found["tokens"].tolist()]
        return Hypothesis(lines.text(found), found["score"].item(), tokens, found["positional_scores"].tolist())

    def _stream(self, task: Any, cfg: Any, ids: np.ndarray, seed: int) -> Iterator[str]:
        loaded, generator, shown = self._loaded, self._generator(task, cfg), ""
        lines = HypothesisLines(loaded.tokenizer, generator.symbols_to_strip_from_output, json_lines=False)
        source = torch.from_numpy(task.form.source(ids)).unsqueeze(0).to(loaded.device)
        with self._turn(cfg.generation.sampling), torch.inference_mode():
            search = BeamSearch(loaded.models, task.form, generator.options, source)
            random = torch.manual_seed(window_seed(seed, 0)).get_state()
        while True:
            # One turn a step: other threads need not wait until the last piece has been asked for.
            with self._turn(cfg.generation.sampling), torch.inference_mode():
                torch.set_rng_state(random)
                goes_on = search.step()
                random = torch.get_rng_state()
            if not goes_on:
                break
            # The last word may still grow, and the end of a text may look otherwise than its middle.
            stable = _stable_part(lines.text({"tokens": search.tokens[0, 0]}))
            if stable.startswith(shown) and len(stable) > len(shown):
                yield stable[len(shown) :]
                shown = stable
        yield lines.text(search.results[0][0])[len(shown) :]

    def _generator(self, task: Any, cfg: Any) -> Any:
        try:
            return task.build_generator(self._loaded.models, cfg.generation)
        except UserError as error:
            raise named(error) from None

    @contextlib.contextmanager
    def _turn(self, is_random: bool) -> Iterator[None]:
        """Within it, no other thread uses the model; random numbers of the program are left as they are."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(self._lock)
            if is_random:
                stack.enter_context(_RANDOM)
            gpus = [torch.cuda.current_device()] if self._loaded.device == "cuda" else []
            stack.enter_context(torch.random.fork_rng(devices=gpus))
            yield

    def _source_columns(self, form: Any, source: np.ndarray) -> PackedColumns:
        tokens = torch.from_numpy(source).to(self._loaded.device)
        segments = torch.from_numpy(form.source_segments(source[None])[0]).to(self._loaded.device)
        positions = torch.arange(len(source), device=self._loaded.device)
        return PackedColumns.given(tokens, positions, segments, [len(source)])

    def _form_for(self, task: Any, language: str) -> Any:
        known = (self._loaded.state.get("layout") or {}).get("languages") or []
        if language not in known:
            languages = ", ".join(known) or "it has none"
            raise UserError(f"target_lang must be a language of the model ({languages}), but is {language!r:.60}")
        return task.form_for(language)

    def _needs_encoder(self, method: str) -> None:
        if not hasattr(self._loaded.models[0], "layers"):
            raise UserError(f"{method} is for encoder-only models, but this one is an encoder-decoder")


def _stable_part(text: str) -> str:
    """Return the words of a text but for the last one, which may go on."""
    return text[: text.rstrip().rfind(" ") + 1].rstrip() if " " in text.rstrip() else ""


def _is_one(sources: Any) -> bool:
    return isinstance(sources, str | Mapping)


def _listed(texts: Any) -> list[Any]:
    # What is no text at all is refused as the only source.
    return list(texts) if isinstance(texts, Iterable) and not _is_one(texts) else [texts]


def _check_seed(seed: Any) -> None:
    if type(seed) is not int or seed < 0:
        raise UserError(f"seed must be a whole number of at least 0, but is {seed!r:.60}")
