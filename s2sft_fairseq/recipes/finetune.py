"""``s2sft finetune``: from an encoder and pairs to a model folder, in stages that can be resumed.

These are: read the pairs, convert, tokenize, choose the settings, binarize, train; after each part of the training
generate from a part of the validation set and score that; then choose checkpoint and search by these scores, generate
from the test set, score that, and export.
"""

import contextlib
import hashlib
import json
import shlex
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from s2sft_fairseq import __version__
from s2sft_fairseq.corpora.pairs import Fields, file_problems, write_pairs
from s2sft_fairseq.corpora.reading import FIELD_SEPARATOR
from s2sft_fairseq.data.text_files import open_bytes, read_json_object
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.files import locked, write_whole
from s2sft_fairseq.recipes import finetune_plan
from s2sft_fairseq.recipes.engine import Call, is_converted, like_a_process, options
from s2sft_fairseq.recipes.finetune_choice import (
    METRICS,
    computed,
    evaluation_options,
    held_out_losses,
    metric_problems,
    search_choices,
)
from s2sft_fairseq.recipes.generation import POSITIONS, Generation, keep_evenly
from s2sft_fairseq.recipes.recipe import Benchmark
from s2sft_fairseq.recipes.settings import RUN, TRAINING, Setting, Settings

DEFAULT, GIVEN, CHOSEN_LATER = "default", "given", (None, "", "auto")
AVERAGED = 3
"""The last so many checkpoints, whose average is tried too."""
SAVED_AFTER = 500
"""Updates that are lost at most when a training is stopped."""
SHOWN = 3
"""Examples that are shown."""
_FREELY_CHANGED = ("output", "workers", "cpu")
"""These do not change what is made."""
HEAD = {"fit_head": ("lm_head.dense.weight", "src"), "output_prior": ("lm_head.bias", "tgt")}
"""Of an option of ``s2sft convert`` the parameter that it computes, and from which tokenized texts."""


class Finetuning(Generation):
    """The stages."""

    run_options: ClassVar = {
        "encoder": Setting(
            "",
            "a pretrained encoder as it is published, a folder that s2sft convert or s2sft finetune wrote, or a "
            "checkpoint with --tokenizer-dir",
            "DIR",
        ),
        "output": Setting("", "where to write", "DIR"),
        "tokenizer_dir": Setting("", "where the tokenizer's files are, if --encoder is a file", "DIR"),
        "limit": Setting(None, "the first N pairs of each file only", least=1),
        **{name: RUN[name] for name in ("workers", "cpu")},
        "skip_malformed": Setting(False, "leave malformed lines out; otherwise they are an error"),
    }
    declared: ClassVar = {
        "method": Setting(
            "pseudo_masked", "of fine-tuning", choices=("causal", "masked", "pseudo_masked", "infilling")
        ),
        "metric": Setting("rouge-l", "by which checkpoint and search are chosen; loss: without text", choices=METRICS),
        "candidates": Setting(5, "checkpoints to choose from, evenly spread over the training", least=1),
        "chosen_on": Setting(200, "validation sources that each of these generates from, greedily", least=1),
        "scored_on": Setting(1000, "sources of --test, or else --valid, that the model generates from", least=1),
        "held_out": Setting(200, "validation pairs that the held-out loss is computed on", least=1),
        "beam": Setting(5, "of the search", least=1),
        "max_source": Setting(None, "positions of a source, special symbols included (that of 99 %%)", least=3),
        "max_target": Setting(None, "positions of a target, special symbols included (that of 99 %%)", least=2),
        "epochs": Setting(None, "passes over the training set (CPU 4, GPU 10)", least=1),
        "updates": Setting(None, "updates, in place of epochs (CPU: at least 100, at most 5,000)", least=1),
        "batch": Setting(None, "pairs of an update, of all GPUs (CPU 16, GPU 64)", least=1),
        "device_batch": TRAINING["device_batch"],
        "lr": Setting("", "learning rate (by the encoder's width: 3e-4, from 512 on 1e-4, from 1024 on 2e-5)", "X"),
        "warmup": Setting(None, "warm-up updates (a tenth of all)", least=0),
        "amp": Setting(
            "auto", "products with 16-bit factors; auto: where they are faster", choices=("auto", "on", "off")
        ),
        "lora_rank": Setting(None, "train adapters of this rank in place of all weights", least=1),
        "label_smoothing": Setting("0.1", "share of the probability that goes to other tokens", "X"),
        "dropout": TRAINING["dropout"],
        "weight_decay": Setting("0.01", "of the optimizer", "X"),
        "target_mask_prob": Setting("", "share of the target tokens that are masked (masked 0.5, else 0)", "P"),
        "noise_prob": Generation.declared["noise_prob"],
        "noise_symbol": Generation.declared["noise_symbol"],
        "layout": TRAINING["layout"],
        "seed": TRAINING["seed"],
    }

    def __init__(
        self,
        files: Mapping[str, Sequence[Path]],
        fields: Fields,
        given: Mapping[str, Any],
        further: Sequence[str],
        call: Call,
    ) -> None:
        """
        Args:
            files: of ``train``, and maybe ``valid`` and ``test``; see `s2sft_fairseq.corpora.pairs.read_pairs`.
            fields: of JSON objects.
            given: values of settings.
            further: options of ``s2sft train``, which win.
            call: runs a command.

        Raises:
            UserError: naming everything that is wrong with files and settings.
        """
        settings = Settings({**self.run_options, **self.declared})
        settings.give({GIVEN: {name: value for name, value in given.items() if value not in CHOSEN_LATER}})
        if not settings.target_mask_prob:
            settings.take({DEFAULT: {"target_mask_prob": "0.5" if settings.method == "masked" else "0"}})
        # What recipes have as settings, and is always the same here.
        settings.separator, settings.added_token, settings.fit_head, settings.dry_run = (
            FIELD_SEPARATOR,
            "",
            False,
            False,
        )
        self.files = {name: paths for name, paths in files.items() if paths}
        self.fields = fields
        super().__init__("finetune", _PAIRS, settings, further, call)
        if problems := list(self.problems()):
            raise UserError.of(problems)
        self.model, self.trials = self.output / "model", self.output / "candidates"
        self.record: dict[str, Any] = {"seconds": {}}

    def run_name(self) -> str:
        return ""

    def problems(self) -> Iterator[str]:
        s = self.settings
        if not s.output:
            yield "--output is needed: the folder to write"
        if not s.encoder or not Path(s.encoder).exists():
            yield f"--encoder must be a folder or a checkpoint, but is {s.encoder or 'not given'}"
        elif Path(s.encoder).is_file() and not s.tokenizer_dir:
            yield f"--tokenizer-dir is needed for {s.encoder}: the folder of the encoder that it was trained from"
        if "train" not in self.files:
            yield "--train is needed: a .jsonl file, a .tsv file, or two line-aligned files"
        for name, paths in self.files.items():
            yield from file_problems(f"--{name}", paths)
        yield from metric_problems(s.metric)

    # What every stage goes through.

    def stage(self, made: Path, what: str, work: Callable[[Path], object]) -> None:
        """Make a file or a folder, unless it is there; its seconds, with those of earlier tries, are noted."""
        if made.exists():
            return super().stage(made, what, work)
        start = time.monotonic()
        try:
            super().stage(made, what, work)
        finally:
            seconds = self.record["seconds"]
            seconds[what] = round(seconds.get(what, 0) + time.monotonic() - start, 1)
            self.note()
        return None

    def note(self, **facts: object) -> None:
        """Add facts to ``finetune.json``."""
        self.record |= facts
        text = json.dumps(self.record, indent=1, ensure_ascii=False, default=str)
        write_whole(self.output / "finetune.json", lambda path: path.write_text(text, encoding="utf-8"))

    def run(self) -> None:
        """Do what is not done yet."""
        with locked(self.output):
            self.pin_everything()
            with contextlib.suppress(UserError):
                self.record |= read_json_object(self.output / "finetune.json")
            self.stage(self.corpus, "read the pairs", self.prepare_corpus)
            self.stage(self.encoder, "convert the encoder", self.make_encoder)
            self.stage(self.tokens, "tokenize", self.tokenize_pairs)
            if self.lacking():
                self.say("the encoder has no language model head of its own: it is computed from the training texts")
                self.stage(self.output / "fitted", "compute the head", self.fit_head)
            self.stage(self.output / "plan.json", "choose the settings", self.write_plan)
            self.take_plan()
            self.stage(self.binarized, "binarize", self.binarize)
            if not self.model.exists():
                self.train_and_choose()
            self.stage(self.model, "export", self.export)
            for left in (self.work / "checkpoints", self.trials):
                shutil.rmtree(left, ignore_errors=True)
            self.report()

    def pin_everything(self) -> None:
        """Note all settings and the contents of the pairs.

        Raises:
            UserError: if the output holds files that were made with others.
        """
        s = self.settings
        named = {name: getattr(s, name) for name in s.declared if name not in _FREELY_CHANGED}
        named |= {name: Path(named[name]).resolve() for name in ("encoder", "tokenizer_dir") if named[name]}
        for name in ("train", "valid", "test"):
            named[name] = " ".join(f"{path.resolve()} ({_digest(path)})" for path in self.files.get(name, ()))
        named |= {"source": " ".join(self.fields.source), "target": self.fields.target}
        made = ("corpus", "encoder", "tokens", "fitted", "plan.json", "binarized", "candidates", "model")
        self.pin(self.output / "settings", made, **named, further=shlex.join(self.further))

    # From pairs to data.

    def prepare_corpus(self, made: Path) -> None:
        s = self.settings
        stats = write_pairs(self.files, made, self.fields, skip_malformed=s.skip_malformed, limit=s.limit)
        scored = "test" if "test" in self.files else "dev"
        for kind in ("src", "refs.jsonl"):
            keep_evenly(s.chosen_on, made / f"dev.{kind}", made / f"choosing.{kind}")
            keep_evenly(s.scored_on, made / f"{scored}.{kind}", made / f"scored.{kind}")
        (made / "scored.json").write_text(json.dumps({"set": scored}), encoding="utf-8")
        told = ", ".join(f"{stats['lines'][f'{name}.src']:,} in {name}" for name in ("train", "valid"))
        self.say(f"pairs: {told}{' (held out)' if stats['settings']['held out'] else ''}")
        self.note(data={**stats["lines"], "valid is held out": stats["settings"]["held out"], "scored": scored})

    def positions(self) -> int:
        s = self.settings
        return (s.max_source or 64) + (s.max_target or 64) + finetune_plan.START

    def conversion(self) -> list[str]:
        needed = self.positions()
        return options(max_positions=needed if needed > POSITIONS else None)

    def make_encoder(self, made: Path) -> None:
        encoder = Path(self.settings.encoder)
        if encoder.is_file():
            self.s2sft("export", encoder, to=made, tokenizer_dir=self.settings.tokenizer_dir)
        elif is_model_folder(encoder):
            made.symlink_to(encoder.resolve())
        else:
            self.convert(encoder, made, *self.conversion())

    def lacking(self) -> dict[str, Path]:
        """Return the options of ``s2sft convert`` that compute what the encoder lacks of a language model head."""
        if self.encoder.is_symlink() or is_model_folder(self.encoder):  # no longer as it is published
            return {}
        missing = open_encoder(self.encoder).newly_initialized
        return {option: self.tokens / f"train.{side}" for option, (name, side) in HEAD.items() if name in missing}

    def fit_head(self, made: Path) -> None:
        self.s2sft("convert", self.settings.encoder, "--to", made, *self.conversion(), **self.lacking())

    def write_plan(self, made: Path) -> None:
        sizes = open_encoder(self.encoder).sizes
        plan = finetune_plan.choose(self.settings, self.tokens, sizes)
        plan["evaluation"] = evaluation_options(self.corpus / "valid.tgt")
        made.write_text(json.dumps(plan, indent=1), encoding="utf-8")

    def take_plan(self) -> None:
        """Take the settings that were chosen, by whichever machine, and show all."""
        s, plan = self.settings, read_json_object(self.output / "plan.json")
        s.take(plan["settings"])
        s.fit_head = (self.output / "fitted").exists()
        self.evaluation = plan["evaluation"]
        names = [name for name in s.declared if getattr(s, name) not in (*CHOSEN_LATER, False)]
        told = {name: {"value": getattr(s, name), "why": s.source_of[name] or DEFAULT} for name in names}
        self.say("settings:")
        for name, each in told.items():
            print(f"  {name:18} {each['value']!s:24} {each['why']}")
        for side, share in plan["cut"].items():
            print(f"  {100 * share:.1f} % of the {side}s are longer, and are cut", flush=True)
        self.note(package_version=__version__, settings=told, device=plan["device"], cut=plan["cut"])

    # The training.

    def points(self) -> list[int]:
        """Return the updates after which the model is tried."""
        updates, parts = self.settings.updates, min(self.settings.candidates, self.settings.updates)
        return [updates * part // parts for part in range(1, parts + 1)]

    def training(self) -> list[str]:
        s, every = self.settings, min(SAVED_AFTER, self.points()[0])
        words = [
            *options(validate_interval_updates=every, save_interval_updates=every, num_workers=0),
            *options(attention_dropout=s.dropout, amp=s.amp == "on", lora_rank=s.lora_rank),
        ]
        if "--lr-scheduler" not in self.further:
            words += options(total_num_update=s.updates)
        before = super().training()
        before = before[: len(before) - len(self.further)]
        return [*before, *words, *self.further]

    def train_until(self, update: int, made: Path) -> None:
        """Train, or go on training, up to an update, and keep its weights."""
        from s2sft_fairseq.checkpoints.averaging import average_checkpoints
        from s2sft_fairseq.checkpoints.saving import save_checkpoint

        self.train(self.work, [*self.training(), *options(max_update=update)], self.settings.updates)
        save_checkpoint(average_checkpoints([self.work / "checkpoints" / "checkpoint_last.pt"]), made)

    def train_and_choose(self) -> None:
        """Train, choose the checkpoint and the search, and generate with them what is scored."""
        s, metric, points = self.settings, METRICS[self.settings.metric], self.points()
        scores: dict[str, dict[str, float]] = {}
        for update in points:
            name = f"update-{update}"
            what = f"train to update {update} of {s.updates}"
            self.stage(self.trials / f"{name}.pt", what, lambda made, update=update: self.train_until(update, made))
            scores[name] = {"loss": held_out_losses(self.work / "train.log")[update]}
            if metric:
                scores[name] |= self.try_out(name, name, beam=1)
        if metric and len(points) > 1:
            self.stage(self.trials / "average.pt", f"average the last {AVERAGED}", self.average)
            scores["average"] = self.try_out("average", "average", beam=1)
        compared = {name: metric.of(each) if metric else -each["loss"] for name, each in scores.items()}
        best = max(compared, key=compared.__getitem__)  # of equal ones the first
        self.say(f"the best checkpoint by {s.metric} is {best}")
        self.note(candidates=scores, chosen=best)
        search: dict[str, Any] = {"beam": s.beam, "lenpen": 1.0}
        if metric and s.beam > 1:
            tried: list[tuple[float, dict[str, Any]]] = []
            for number in range(len(search_choices(s.beam, {}))):
                found = max(tried, key=lambda one: one[0])[1] if tried else {}
                choice = search_choices(s.beam, found)[number]
                trial = "-".join(f"{name}{value}" for name, value in choice.items())
                tried.append((metric.of(self.try_out(best, f"{best}-{trial}", **choice)), choice))
            search = max(tried, key=lambda one: one[0])[1]
            self.note(searches=[{**choice, s.metric: value} for value, choice in tried])
        self.note(search=search)
        self.generate_scored(self.trials / f"{best}.pt", search)

    def average(self, made: Path) -> None:
        from s2sft_fairseq.checkpoints.averaging import average_checkpoints
        from s2sft_fairseq.checkpoints.saving import save_checkpoint

        last = [self.trials / f"update-{update}.pt" for update in self.points()[-AVERAGED:]]
        save_checkpoint(average_checkpoints(last), made)

    def try_out(self, checkpoint: str, trial: str, **search: object) -> dict[str, float]:
        """Generate from a part of the validation set and return the scores, in percent."""
        made = self.trials / f"{trial}.txt"
        model, source = self.trials / f"{checkpoint}.pt", self.corpus / "choosing.src"
        self.stage(made, f"generate with {trial}", lambda _: self.write_text(model, source, made, search))
        scores = self.scores(made, "choosing")
        self.say(f"{trial}: " + ", ".join(f"{name} {value:.1f}" for name, value in scores.items()))
        return scores

    def write_text(self, model: Path, source: Path, made: Path, search: Mapping[str, object]) -> None:
        files = {"path": model, "tokenizer_dir": self.encoder, "input": source, "output": made, "overwrite": True}
        log = (self.output / "generate.log").open("a", encoding="utf-8")
        with log, contextlib.redirect_stdout(log), contextlib.redirect_stderr(log):
            self.s2sft("generate", **files, separator=FIELD_SEPARATOR, cpu=self.settings.cpu, **search)

    def scores(self, made: Path, name: str) -> dict[str, float]:
        """Return the scores of generated text; ``.scores`` and ``.json`` beside it have their signatures."""
        of, json_file = self.corpus / name, made.with_suffix(".json")
        words = [*self.evaluation, "--metrics", *computed(self.settings.metric)]
        table = self.printed("evaluate", *words, hyp=made, src=f"{of}.src", ref=f"{of}.refs.jsonl", json=json_file)
        made.with_suffix(".scores").write_text(table, encoding="utf-8")
        (system,) = read_json_object(json_file)["systems"].values()
        return {score["name"]: score["value"] for score in system["scores"]}

    def generate_scored(self, model: Path, search: Mapping[str, object]) -> None:
        """Generate from the test set, or the validation set, and score that."""
        made, source = self.output / "scored.txt", self.corpus / "scored.src"
        self.stage(made, "generate what is scored", lambda _: self.write_text(model, source, made, search))
        self.scores(made, "scored")
        (system,) = read_json_object(made.with_suffix(".json"))["systems"].values()
        self.note(scores=system["scores"], examples=self.examples())

    def examples(self) -> list[dict[str, str]]:
        """Return a few sources with their first reference and what was generated."""
        files = (self.corpus / "scored.src", self.corpus / "scored.refs.jsonl", self.output / "scored.txt")
        rows = list(zip(*(path.read_text(encoding="utf-8").split("\n")[:-1] for path in files), strict=True))
        few = rows[:: -(-len(rows) // SHOWN)]
        return [{"source": a, "reference": json.loads(b)["refs"][0], "generated": c} for a, b, c in few]

    def export(self, made: Path) -> None:
        """Write the model folder, with what is known for its card."""
        from s2sft_fairseq.models.model_folder import export_folder

        record = {name: value for name, value in self.record.items() if name != "examples"}
        facts = {**record, "encoder": self.settings.encoder, "seconds": sum(self.record["seconds"].values())}
        checkpoint = self.trials / f"{self.record['chosen']}.pt"
        with like_a_process():
            export_folder(checkpoint, made, self.encoder, search=self.record["search"], facts=facts)

    def report(self) -> None:
        """Show examples, the scores, and where everything is."""
        for example in self.record["examples"]:
            print()
            for name, text in example.items():
                print(f"  {name:10} {text[:200]}{'...' if len(text) > 200 else ''}")
        scored = {"test": "the test set", "dev": "the validation set"}[self.record["data"]["scored"]]
        print(f"\n{scored}:\n{(self.output / 'scored.scores').read_text(encoding='utf-8')}", end="")
        if scored != "the test set":
            print("checkpoint and search were chosen on a part of this set: only a test set tells how good they are")
        self.say(f"the model is {self.model}; settings, seconds and scores are in {self.output / 'finetune.json'}")


_PAIRS = Benchmark("Pairs of the user's own.", "", lambda options, malformed: {}, {}, Finetuning)


def open_encoder(folder: Path) -> Any:
    """Return what describes the encoder in a folder."""
    from s2sft_fairseq.checkpoints.pretrained import PretrainedEncoder

    return PretrainedEncoder.open(folder)


def is_model_folder(folder: Path) -> bool:
    """Tell whether ``s2sft export`` or ``s2sft finetune`` wrote a folder."""
    config = folder / "config.json"
    if not config.is_file() or is_converted(folder):
        return False
    return read_json_object(config).get("format") == "s2sft_fairseq model"


def _digest(path: Path) -> str:
    with open_bytes(path) as file:
        return hashlib.file_digest(file, "blake2b").hexdigest()[:12]  # type: ignore[arg-type]


def finetune(
    encoder: str | Path,
    train: Any,
    valid: Any = None,
    test: Any = None,
    *,
    output: str | Path,
    source: Iterable[str] = ("src",),
    target: str = "tgt",
    further: Sequence[str] = (),
    **settings: Any,
) -> Any:
    """Fine-tune an encoder to write targets for sources: ``s2sft finetune`` in Python.

    Called again with the same arguments, it goes on where it was stopped; when all is done it only loads the model.

    Args:
        encoder: a folder or a checkpoint; see ``s2sft finetune --help``.
        train: pairs: the path of a file, two paths of line-aligned files, or any iterable of ``(source, target)`` or of
            dicts, such as a list, a generator or a data set of the package ``datasets``.
        valid: the same of the validation set; None: a part of `train` is held out.
        test: the same of a test set, if there is one.
        output: the folder to write.
        source: keys of dicts that make up a source.
        target: the key of the target, a text or a list of references.
        further: options of ``s2sft train``, which win.
        settings: the options of ``s2sft finetune``, with ``_`` for ``-``: ``method``, ``metric``, ``epochs``,
            ``updates``, ``batch``, ``lr``, ``max_source``, ``max_target``, ``beam``, ``lora_rank``, ``seed``, ``cpu``
            and so on.

    Returns:
        The `s2sft_fairseq.Seq2Seq` of the best checkpoint.

    Raises:
        UserError: naming what is wrong with the arguments or the pairs, or which differ from those of an earlier call.
    """
    from s2sft_fairseq import Seq2Seq, cli
    from s2sft_fairseq.recipes.finetune_data import to_files
    from s2sft_fairseq.recipes.settings import read_values

    declared = {**Finetuning.run_options, **Finetuning.declared}
    named = {"encoder": encoder, "output": output, **settings}
    given = read_values(declared, {name: value for name, value in named.items() if value is not None})
    fields = Fields(tuple(source), target)
    files = to_files({"train": train, "valid": valid, "test": test}, Path(output) / "pairs", fields)
    Finetuning(files, fields, given, further, cli.call).run()
    return Seq2Seq.from_pretrained(Path(output) / "model")
