"""The stages of ``s2sft finetune`` that make a model: train, generate, choose, score, export."""

import contextlib
import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from pathlib import Path, PurePath
from typing import Any

from s2sft_fairseq.corpora.pairs import Fields
from s2sft_fairseq.data.bounded_files import parse_json, read_json_object
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.files import write_whole
from s2sft_fairseq.hub import name_of
from s2sft_fairseq.progress import step
from s2sft_fairseq.recipes.engine import like_a_process, options
from s2sft_fairseq.recipes.finetune_choice import METRICS, Search, computed, held_out_losses, search_choices
from s2sft_fairseq.recipes.generation import Generation
from s2sft_fairseq.recipes.scores import by_name, read_scores, read_systems

AVERAGED = 3
"""Number of last checkpoints whose average is one more candidate."""
SAVED_AFTER = 250
"""Maximum number of updates that are lost when a training is stopped."""
SHOWN = 3
"""Number of examples to show."""
REPEATED = 4
"""Number of sources from which on one text for most of them is worth a warning."""
DEFAULT_METRIC = "rouge-l"
"""The metric that is compared with the lead's if the held-out loss chooses."""


class Trials(Generation):
    """The stages from binarized pairs to a model, with the settings of `s2sft_fairseq.recipes.finetune`."""

    fields: Fields
    """The fields of the pairs."""
    evaluation: list[str]
    """Options of ``s2sft evaluate``."""
    least: int
    """Number of tokens that nearly all targets have."""
    earlier: Mapping[str, Any]
    """Of a training that goes on: the updates of the model that it began from, and its path."""
    hub_name: str = ""
    """The name of the encoder on the Hugging Face hub, if it is from there."""
    record: dict[str, Any]
    """The contents of ``finetune.json``."""

    @property
    def trials(self) -> Path:
        """The folder of the candidates and the texts that they generated."""
        return self.output / "candidates"

    def note(self, **facts: object) -> None:
        """Add facts to ``finetune.json``."""
        self.record |= facts
        text = json.dumps(self.record, indent=1, ensure_ascii=False, default=str)
        write_whole(self.output / "finetune.json", lambda path: path.write_text(text, encoding="utf-8"))

    def points(self) -> list[int]:
        """Return the numbers of updates after which a candidate is kept."""
        updates, parts = self.settings.updates, min(self.settings.candidates, self.settings.updates)
        return [updates * part // parts for part in range(1, parts + 1)]

    def training(self) -> list[str]:
        """Return the arguments of ``s2sft train``."""
        s, every = self.settings, min(SAVED_AFTER, self.points()[0])
        words = super().training()
        own = [
            *options(validate_interval_updates=every, save_interval_updates=every, num_workers=0),
            *options(
                attention_dropout=s.dropout,
                amp=s.amp == "on" and "--float32" not in self.further,
                lora_rank=s.lora_rank,
            ),
            *options(log_interval=s.updates // 40 or 1),
            *options(total_num_update=None if "--lr-scheduler" in self.further else s.updates),
        ]
        end = len(words) - len(self.further)  # the user's options come last, and have precedence
        return [*words[:end], *own, *words[end:]]

    def train_until(self, update: int, made: Path) -> None:
        """Train, or continue the training, up to an update, and keep the weights."""
        self.train(self.output, [*self.training(), *options(max_update=update)], self.settings.updates)
        average([self.output / "checkpoints" / "checkpoint_last.pt"], made)

    def train_and_choose(self) -> None:
        """Train, choose the checkpoint and the search, generate with them, and score the result."""
        s, metric = self.settings, METRICS[self.settings.metric]
        scores = self.try_checkpoints()
        # Of equal scores, take the first.
        best = max(scores, key=lambda name: metric.of(scores[name]) if metric else -scores[name]["loss"])
        self.say(f"the best checkpoint by {s.metric} is {best}")
        self.note(candidates=scores, chosen=best)
        search = self.choose_search(best, metric.of(scores[best])) if metric else {"beam": s.beam}
        self.note(search=search)
        made, model = self.output / "scored.txt", self.trials / f"{best}.pt"
        self.stage(made, "generate what is scored", lambda _: self.write_text(model, "scored", made, search))
        self.scores(made, "scored")
        ours, *leads = read_systems(made.with_suffix(".json"))
        baseline = leads[0] if leads else []
        self.note(scores=ours, baseline=baseline, examples=self.examples(made, "scored"))

    def try_checkpoints(self) -> dict[str, dict[str, float]]:
        """Train, and return the held-out loss and the scores of each candidate; the average of the last has no loss."""
        points, metric = self.points(), METRICS[self.settings.metric]
        scores: dict[str, dict[str, float]] = {}
        for update in points:
            name, what = f"update-{update}", f"train to update {update} of {self.settings.updates}"
            self.stage(self.trials / f"{name}.pt", what, lambda made, update=update: self.train_until(update, made))  # type: ignore[misc]
            scores[name] = {"loss": held_out_losses(self.output / "train.log").get(update, math.inf)}
            if metric:
                scores[name] |= self.try_out(name, name, beam=1)
                show(self.examples(self.trials / f"{name}.txt", "choosing")[:1])
        last = [self.trials / f"update-{update}.pt" for update in points[-AVERAGED:]]
        if metric and len(last) > 1:
            what = f"average the last {len(last)}"
            self.stage(self.trials / "average.pt", what, lambda made: average(last, made))
            scores["average"] = self.try_out("average", "average", beam=1)
        return scores

    def choose_search(self, checkpoint: str, greedily: float) -> Search:
        """Return the search with the best score of a checkpoint; `greedily` is the score of greedy search."""
        s, metric = self.settings, METRICS[self.settings.metric]
        assert metric is not None
        tried: list[tuple[float, Search]] = [(greedily, {"beam": 1})] if s.beam == 1 or "beam" not in s.given else []
        for choose in search_choices(s.beam, self.least):
            choice = choose(max(tried, key=itemgetter(0))[1] if tried else {})
            trial = "-".join([checkpoint, *(f"{name}{value}" for name, value in choice.items())])
            tried.append((metric.of(self.try_out(checkpoint, trial, **choice)), choice))
        self.note(searches=[{**choice, s.metric: score} for score, choice in tried])
        return max(tried, key=itemgetter(0))[1]

    def try_out(self, checkpoint: str, trial: str, **search: object) -> dict[str, float]:
        """Generate from a part of the validation set, and return the scores in percent."""
        made, model = self.trials / f"{trial}.txt", self.trials / f"{checkpoint}.pt"
        self.stage(made, f"generate with {trial}", lambda _: self.write_text(model, "choosing", made, search))
        scores = self.scores(made, "choosing")
        self.say(f"{trial}: " + ", ".join(f"{name} {value:.1f}" for name, value in scores.items()))
        return scores

    def write_text(self, model: Path, name: str, made: Path, search: Mapping[str, object]) -> None:
        """Generate from the sources of a set."""
        files = {"path": model, "tokenizer_dir": self.encoder, "input": self.corpus / f"{name}.src", "output": made}
        with self.logged():
            self.s2sft("generate", **files, cpu=self.settings.cpu, **search)

    @contextlib.contextmanager
    def logged(self) -> Iterator[None]:
        """Write the output of the block to ``generate.log``."""
        log = (self.output / "generate.log").open("a", encoding="utf-8")
        with log, contextlib.redirect_stdout(log), contextlib.redirect_stderr(log):
            yield

    def lead_words(self) -> int:
        """Return the number of words of a lead, the baseline: as many as the targets of the validation set have."""
        with (self.corpus / "valid.tgt").open(encoding="utf-8") as targets:
            words = [len(line.split()) for line in targets]
        return max(1, round(sum(words) / len(words)))

    def warnings(self, made: Path) -> Iterator[str]:
        """Yield what is wrong with the texts that are scored: nothing, always the same, no better than the lead."""
        texts = made.read_text(encoding="utf-8").split("\n")[:-1]
        yield from text_problems(texts)
        metric = METRICS[self.settings.metric] or METRICS[DEFAULT_METRIC]
        assert metric is not None
        score, lead = metric.of(by_name(self.record["scores"])), by_name(self.record["baseline"])
        poor = f"{metric.score} {score:.1f} is no better than"
        if self.earlier:
            record = read_json_object(Path(self.earlier["model"]).parent / "finetune.json")
            before = metric.of(by_name(record["scores"]))
            if score <= before:
                yield f"{poor} after {self.earlier['updates']} updates ({before:.1f})"
        if lead and score <= metric.of(lead):
            yield (
                f"{poor} the first {self.lead_words()} words of the sources ({metric.of(lead):.1f}): train longer, or "
                "look at the pairs"
            )

    def scores(self, made: Path, name: str) -> dict[str, float]:
        """Score generated text, and return the scores; the files ``.scores`` and ``.json`` also have signatures.

        The final scores have those of the baseline beside them: the first words of the sources.
        """
        of, json_file = self.corpus / name, made.with_suffix(".json")
        words = [*self.evaluation, "--metrics", *computed(self.settings.metric)]
        lead = f"{self.lead_words()}-words" if name == "scored" else None
        with self.logged():
            files = {"hyp": made, "src": f"{of}.src", "ref": f"{of}.refs.jsonl", "json": json_file}
            table = self.printed("evaluate", *words, **files, lead=lead)
        made.with_suffix(".scores").write_text(table, encoding="utf-8")
        return read_scores(json_file)

    def examples(self, made: Path, name: str) -> list[dict[str, str]]:
        """Return a few sources of a set with their first references and generated texts."""
        files = (self.corpus / f"{name}.src", self.corpus / f"{name}.refs.jsonl", made)
        rows = list(zip(*(path.read_text(encoding="utf-8").split("\n")[:-1] for path in files), strict=True))
        few = rows[:: -(-len(rows) // SHOWN)]
        return [{"source": a, "reference": parse_json(b)["refs"][0], "generated": c} for a, b, c in few]

    def export(self, made: Path) -> None:
        """Write the model folder, with the facts for its card."""
        from s2sft_fairseq.models.model_folder import export_folder

        checkpoint = self.trials / f"{self.record['chosen']}.pt"
        with like_a_process():
            known = {"search": self.record["search"], "facts": self.facts(), "source_names": self.fields.source}
            export_folder(checkpoint, made, self.encoder, **known)

    def facts(self) -> dict[str, Any]:
        """Return the facts for the model card."""
        s, record = self.settings, self.record
        return {
            "encoder": self.hub_name or name_of_encoder(Path(s.encoder)),
            "updates": s.updates + self.earlier.get("updates", 0),
            "batch": s.batch,
            "pairs": read_json_object(self.corpus / "stats.json")["lines"],
            "seconds": round(sum(record["seconds"].values())),
            "hardware": read_json_object(self.output / "plan.json")["device"],
            "chosen": f"{record['chosen']}, by {s.metric}",
            "scored": "test set" if (self.corpus / "test.src").exists() else "validation set",
            "scores": record["scores"],
        }


def text_problems(texts: Sequence[str]) -> Iterator[str]:
    """Yield what is wrong with generated texts: empty ones, or one that is repeated for most sources."""
    number = len(texts)
    if empty := sum(not text.strip() for text in texts):
        yield f"{empty:,} of {number:,} texts are empty"
    for text, times in Counter(filter(str.strip, texts)).most_common(1):
        if times >= REPEATED and 2 * times > number:
            yield f"the same text is written for {times:,} of {number:,} sources: {text[:100]!r}"


def name_of_encoder(encoder: Path) -> str:
    """Return the name of an encoder for a model card.

    That is the name that its ``config.json`` has, because the name of a folder says little. A model folder has the name
    of the encoder that it was trained from.
    """
    folder = encoder.resolve() if encoder.is_dir() else encoder.resolve().parent
    if name_of(folder) != folder.name:  # it was downloaded by this name
        return name_of(folder)
    try:
        config = read_json_object(folder / "config.json")
    except UserError:
        return folder.name
    training = config.get("training")
    of_model = training.get("encoder") if isinstance(training, dict) else None
    name = of_model or config.get("_name_or_path")
    if not isinstance(name, str):
        return folder.name
    if re.fullmatch(r"[\w.-]+(/[\w.-]+)?", name):
        return name
    return PurePath(name).name or folder.name  # a path on another machine says less than its last part


def show(examples: Iterable[Mapping[str, str]]) -> None:
    """Print examples; long texts are cut."""
    for example in examples:
        for name, text in example.items():
            print(f"  {name:10} {text[:200]}{'...' if len(text) > 200 else ''}")
        print(flush=True)


def average(checkpoints: list[Path], made: Path) -> None:
    """Write the average of one or several checkpoints, without the state of the optimizer."""
    from s2sft_fairseq.checkpoints.averaging import average_checkpoints
    from s2sft_fairseq.checkpoints.saving import save_checkpoint

    state = average_checkpoints(checkpoints)
    with step(f"write {made.name}"):
        save_checkpoint(state, made)
