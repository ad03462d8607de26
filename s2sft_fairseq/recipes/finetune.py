"""``s2sft finetune``: from an encoder and pairs to a model folder, in resumable stages.

The stages read the pairs, convert, tokenize, choose the settings, binarize, and train. After each part of the training,
the model generates from a part of the validation set. The scores determine the checkpoint and the search.
"""

import contextlib
import copy
import json
import shlex
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

from s2sft_fairseq import __version__
from s2sft_fairseq.checkpoints.paddle_files import paddle_model
from s2sft_fairseq.checkpoints.sizes import is_language_model
from s2sft_fairseq.corpora.pairs import USUAL, Fields, file_problems, write_pairs
from s2sft_fairseq.data.bounded_files import read_json_object, whole_number
from s2sft_fairseq.data.dictionary import DICTIONARY
from s2sft_fairseq.errors import UserError, as_option, shown
from s2sft_fairseq.files import locked, write_whole
from s2sft_fairseq.hub import is_hub_name, tokenizer_path
from s2sft_fairseq.recipes import finetune_plan
from s2sft_fairseq.recipes.engine import Call, as_texts, changes, is_converted, like_a_process, options
from s2sft_fairseq.recipes.finetune_choice import evaluation_options, metric_problems
from s2sft_fairseq.recipes.finetune_data import PINNED, fingerprint, output_problems, to_files
from s2sft_fairseq.recipes.finetune_settings import LANGUAGE_MODEL, RUN_OPTIONS, SETTINGS
from s2sft_fairseq.recipes.finetune_trials import Trials, show
from s2sft_fairseq.recipes.generation import POSITIONS, keep_evenly
from s2sft_fairseq.recipes.option_texts import option_problems, scoring_options
from s2sft_fairseq.recipes.recipe import Benchmark
from s2sft_fairseq.recipes.settings import Settings, read_values
from s2sft_fairseq.signals import INTERRUPTED, STATUS

if TYPE_CHECKING:
    from s2sft_fairseq import Seq2Seq
    from s2sft_fairseq.checkpoints.pretrained import PretrainedEncoder

STAGES = ("corpus", "encoder", "tokens", "plan.json", "binarized", "scored.txt", "model")
"""What the stages make in the output, one after the other."""
DEFAULT, GIVEN, UNSET = "default", "given", (None, "", "auto")
OF_TRAINING = frozenset(("further", *SETTINGS)).difference(
    ("chosen_on", "scored_on", "held_out", "max_source", "max_target"), RUN_OPTIONS
)
"""Settings that only the training and what follows depend on."""
OWN_OPTIONS = ("--save-dir", "--log-file", "--log-format", "--no-save")
"""Options of ``s2sft train`` on whose values the stages depend."""
LEAST_TRAINING: dict[str, Any] = {
    "updates": 1,
    "warmup": 1,
    "batch": 1,
    "lr": "1e-4",
    "amp": "off",
    "max_source": 64,
    "max_target": 64,
}
"""Settings that the plan chooses later, for a check of the other options of the training."""
TARGET_MASK_PROB = {"masked": "0.5", "pseudo_masked": "0"}
HEAD = {"fit_head": ("lm_head.dense.weight", "src"), "output_prior": ("lm_head.bias", "tgt")}
"""For options of ``s2sft convert``, the parameter that the option computes, and the side of the texts for that."""


class Finetuning(Trials):
    """The stages of ``s2sft finetune``."""

    run_options: ClassVar = RUN_OPTIONS
    declared: ClassVar = SETTINGS
    earlier: Mapping[str, Any] = MappingProxyType({})
    """Of a training that goes on: the updates of the model that it began from, and its path."""

    def __init__(
        self,
        files: Mapping[str, Sequence[Path]],
        fields: Fields,
        given: Mapping[str, Any],
        further: Sequence[str],
        call: Call,
        data: Mapping[str, Any] | None = None,
    ) -> None:
        """Check files and settings.

        Args:
            files: files of ``train``, and optionally ``valid`` and ``test``; see
                `s2sft_fairseq.corpora.pairs.read_pairs`.
            fields: the fields of JSON objects.
            given: values of settings.
            further: options of ``s2sft train``, which have precedence.
            call: runs a command.
            data: in place of files the sets of a program, see `to_files`; they are written when all else is checked.

        Raises:
            UserError: lists all problems of files and settings.
        """
        settings = Settings({**self.run_options, **self.declared})
        settings.give({GIVEN: {name: value for name, value in given.items() if value not in UNSET}})
        if not settings.target_mask_prob:
            settings.take({DEFAULT: {"target_mask_prob": TARGET_MASK_PROB.get(settings.method, "")}})
        if settings.output:  # checkpoints name the encoder by its path
            settings.output = Path(settings.output).resolve()
        # Settings of recipes that this command does not have.
        not_here = {
            "run": "",
            "added_token": "",
            "fit_head": False,
            "dry_run": False,
            "loss_tokens": None,
            "adam_eps": "",
        }
        vars(settings).update(not_here, separator="")
        super().__init__("finetune", _PAIRS, settings, further, call)
        self.files, self.fields = {name: paths for name, paths in files.items() if paths}, fields
        problems = list(self.problems(needs_files=data is None)) or list(self.training_problems())
        if data is not None and not problems:
            leaves_out = bool(given.get("skip_malformed"))
            self.files |= to_files(data, self.output / "pairs", fields, skip_malformed=leaves_out)
            problems = list(self.problems())
        if problems:
            raise UserError.of(problems)
        self.find_encoder()
        self.model, self.record = self.output / "model", {"seconds": {}}

    def run_name(self) -> str:
        """Return "": a training has no folder of its own within the output."""
        return ""

    def problems(self, *, needs_files: bool = True) -> Iterator[str]:
        """Yield the problems of files and settings."""
        s = self.settings
        if not s.output:
            yield "--output is needed: the folder to write"
        else:
            yield from output_problems(self.output)
        if not s.encoder or not (Path(s.encoder).exists() or is_hub_name(s.encoder)):
            yield (
                "--encoder must be a folder, a checkpoint, or a name on the Hugging Face hub, but is "
                f"{s.encoder or 'not given'}"
            )
        elif what := paddle_model(Path(s.encoder)):
            yield f"--encoder {s.encoder} holds {what}"
        elif is_checkpoint(Path(s.encoder)) and not s.tokenizer_dir:
            yield f"--tokenizer-dir is needed for {s.encoder}: the folder of the encoder that it was trained from"
        if needs_files and "train" not in self.files:
            yield "--train is needed: a .jsonl, .tsv or .csv file, or two line-aligned files"
        for name, paths in self.files.items():
            yield from file_problems(f"--{name}", paths)
        yield from metric_problems(s.metric)
        if float(s.source_loss_weight or 0) and "method" in s.given and s.method != "causal":
            yield f"--source-loss-weight is for --method causal, but that is {s.method}"
        shares = {name: float(getattr(s, name) or 0) for name in ("dropout", "label_smoothing")}
        yield from (f"{as_option(name)} must be below 1, but is 1" for name, share in shares.items() if share == 1)
        if s.updates and s.warmup and s.warmup > s.updates:
            yield f"--warmup must be at most --updates ({s.updates}), but is {s.warmup}"

    def training_problems(self) -> Iterator[str]:
        """Yield the problems of the options of ``s2sft train``; numbers that are not known yet have a value."""
        given = {word.partition("=")[0] for word in self.further}
        yield from (f"{option} is set by s2sft finetune: leave it out" for option in OWN_OPTIONS if option in given)
        from s2sft_fairseq import plugin  # noqa: F401  (imports PyTorch, and patches fairseq)
        from s2sft_fairseq.commands import fairseq_command

        trial = copy.copy(self)
        trial.settings = Settings(self.settings.declared)
        unknown = {name: value for name, value in LEAST_TRAINING.items() if getattr(self.settings, name) in UNSET}
        vars(trial.settings).update(vars(self.settings) | unknown)
        with like_a_process():
            yield from fairseq_command.training_problems(trial.training())

    def find_encoder(self) -> None:
        """Replace the names of encoder and tokenizer on the hub by the folders of their files."""
        name = str(self.settings.encoder)
        super().find_encoder()
        if str(self.settings.encoder) != name:
            self.hub_name = name.partition("@")[0]  # without the revision
        if self.settings.tokenizer_dir:
            self.settings.tokenizer_dir = tokenizer_path(self.settings.tokenizer_dir)

    def stage(self, made: Path, what: str, work: Callable[[Path], object]) -> None:
        """Make a file or a folder, unless it exists, and record its time, including that of earlier attempts."""
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

    def run(self) -> None:
        """Run all stages that are not done yet, and print a report."""
        with locked(self.output):
            if further := self.going_on():
                further.run()
                self.model = further.model
                return
            self.run_stages()

    def run_stages(self) -> None:
        """Run all stages of a training that are not done yet, and print a report."""
        with self.interruptions():
            self.pin_everything()
            with contextlib.suppress(UserError):
                self.record |= read_json_object(self.output / "finetune.json")
            self.stage(self.corpus, "read the pairs", self.prepare_corpus)
            self.stage(self.encoder, "convert the encoder", self.make_encoder)
            self.settle_start()
            self.sample_sources()
            self.stage(self.tokens, "tokenize", self.tokenize_pairs)
            if self.lacking():
                self.complete_head()
            self.stage(self.output / "plan.json", "choose the settings", self.write_plan)
            self.take_plan()
            self.stage(self.binarized, "binarize", self.binarize)
            if not self.model.exists():
                self.train_and_choose()
                self.note(warnings=list(self.warnings(self.output / "scored.txt")), earlier=dict(self.earlier))
            self.stage(self.model, "export", self.export)
            for no_longer_needed in (self.output / "checkpoints", self.trials):
                shutil.rmtree(no_longer_needed, ignore_errors=True)
            self.report()

    @contextlib.contextmanager
    def interruptions(self) -> Iterator[None]:
        """Say what is kept if Ctrl-C or a signal ends the block."""
        try:
            yield
        except (KeyboardInterrupt, SystemExit) as error:
            if isinstance(error, KeyboardInterrupt) or error.code in (STATUS, INTERRUPTED):
                self.say(self.interruption())
            raise

    def interruption(self) -> str:
        """Return what an interrupted run leaves, and how to go on."""
        done = len([name for name in STAGES if (self.output / name).exists()])
        parts = [f"{done} of {len(STAGES)} parts are done"]
        trained = [int(path.stem.partition("-")[2]) for path in self.trials.glob("update-*.pt")]
        with contextlib.suppress(UserError):
            trained.append(int(read_json_object(self.output / "checkpoints" / "status.json").get("updates", 0)))
        if trained:
            of_all = f" of {self.settings.updates}" if self.settings.updates else ""
            parts.append(f"the training is saved at update {max(trained)}{of_all}")
        return f"interrupted: {', '.join(parts)}, in {self.output}; the same command, or call, goes on from there"

    def pin_everything(self) -> None:
        """Record all settings and fingerprints of the pairs. Until something is trained, its settings may change.

        Raises:
            UserError: the output holds files that were made with other settings or pairs.
        """
        file, named = self.output / PINNED, self.pinned()
        changed = changes(file, named) if file.exists() else {}
        trained = [*self.trials.glob("*.pt"), *self.output.glob("checkpoints/*.pt"), *self.output.glob("scored.txt")]
        if changed and OF_TRAINING.issuperset(changed) and not trained and not self.model.exists():
            (self.output / "plan.json").unlink(missing_ok=True)
            write_whole(file, lambda path: path.write_text(json.dumps(as_texts(named), indent=1), encoding="utf-8"))
        self.pin(file, (*STAGES, "fitted", "candidates"), **named)

    def pinned(self) -> dict[str, Any]:
        """Return all settings and fingerprints of the pairs."""
        s = self.settings
        named: dict[str, Any] = {name: getattr(s, name) for name in self.declared}
        named |= {name: Path(value).resolve() for name in ("encoder", "tokenizer_dir") if (value := getattr(s, name))}
        for name in ("train", "valid", "test"):
            named[name] = ", ".join(f"{path.resolve()} ({fingerprint(path)})" for path in self.files.get(name, ()))
        named |= {"source": ", ".join(self.fields.source), "target": self.fields.target}
        return named | {"limit": s.limit, "skip_malformed": s.skip_malformed, "further": shlex.join(self.further)}

    def going_on(self) -> "Finetuning | None":
        """Return the stages that train the finished model for more updates; None if that is not what is asked for.

        Raises:
            UserError: it has as many updates already.
        """
        changed = changes(self.output / PINNED, self.pinned())
        if not self.model.exists() or not changed or not {"updates", "epochs"}.issuperset(changed):
            return None
        try:
            record = read_json_object(self.output / "finetune.json")
            found = {name: each["value"] for name, each in record["settings"].items()}
            an_epoch = -(-record["data"]["lines"]["train"] // found["batch"])
            done = {self.model: int(found["updates"])}
        except (UserError, KeyError, TypeError, AttributeError):
            return None  # of another version
        total = self.settings.updates or (self.settings.epochs or 0) * an_epoch
        if total <= done[self.model]:
            raise UserError(
                f"{self.output} holds a model of {done[self.model]} updates: to train it further, --updates or "
                f"--epochs must make more, but make {total}"
            )
        for folder in self.output.glob("updates-*"):
            number = whole_number(folder.name.partition("-")[2])
            if number and number < total and (folder / "model").exists():
                done[folder / "model"] = number
        output = self.output / f"updates-{total}"
        with contextlib.suppress(UserError):  # where it began before, it goes on from there
            start = Path(str(read_json_object(output / PINNED).get("encoder")))
            done = {start: done[start]} if start in done else done
        model = max(done, key=lambda each: done[each])
        lengths = {name: found[name] for name in ("max_source", "max_target")}
        return self.from_model(model, done[model], updates=total - done[model], output=output, **lengths)

    def from_model(self, model: Path, done: int, **changed: Any) -> "Finetuning":
        """Return the stages that train a model of ``done`` updates with these settings, but for those that change."""
        s = self.settings
        settings = {name: getattr(s, name) for name in s.given if name not in ("epochs", "tokenizer_dir", "layers")}
        settings |= {"encoder": model, **changed}
        further = Finetuning(self.files, self.fields, read_given(settings), self.further, self._call)
        further.earlier = {"updates": done, "model": str(model)}
        self.say(
            f"going on: a restart, with warm-up, from the model of {done} updates for {changed['updates']} more. "
            f"{model} stays as it is, and the new model is {further.model}"
        )
        return further

    def prepare_corpus(self, made: Path) -> None:
        """Write the pairs as line-aligned files, and the parts of them to choose by and to score."""
        s = self.settings
        stats = write_pairs(self.files, made, self.fields, skip_malformed=s.skip_malformed, limit=s.limit)
        held_out, lines = stats["settings"]["held out"], stats["lines"]
        validation = "held out for validation" if held_out else "for validation"
        self.say(f"{lines['train']:,} pairs to train on, {lines['valid']:,} {validation}")
        self.note(data={"lines": lines, "valid is held out": held_out, "scored": self.scored_set()})

    def scored_set(self) -> str:
        """Return the name of the set that is scored."""
        return "test" if "test" in self.files else "dev"

    def sample_sources(self) -> None:
        """Write the parts of the sets to choose by and to score."""
        s, folder = self.settings, self.corpus
        for kind in ("src", "refs.jsonl"):
            keep_evenly(s.chosen_on, folder / f"dev.{kind}", folder / f"choosing.{kind}")
            keep_evenly(s.scored_on, folder / f"{self.scored_set()}.{kind}", folder / f"scored.{kind}")

    def positions(self) -> int:
        """Return the number of positions that the encoder needs; lengths that are not given count as 64."""
        s = self.settings
        return (s.max_source or 64) + (s.max_target or 64) + finetune_plan.START

    def conversion(self) -> list[str]:
        """Return the options of ``s2sft convert``."""
        needed = self.positions()
        tokenizer = self.settings.tokenizer_dir or None
        longer = needed if needed > POSITIONS else None
        return options(layers=self.settings.layers, max_positions=longer, tokenizer_dir=tokenizer)

    def make_encoder(self, made: Path) -> None:
        """Export a checkpoint, link to a model folder, or convert an encoder.

        Raises:
            UserError: layers are to be left out of a model that is not converted; or raised by the conversion.
        """
        from s2sft_fairseq.checkpoints.model_folder import is_model_folder  # imports PyTorch

        encoder = Path(self.settings.encoder)
        is_ready = is_checkpoint(encoder) or is_model_folder(encoder) or is_converted(encoder)
        if self.settings.layers and is_ready:
            raise UserError(f"--layers is for encoders as they are published, but {encoder} is converted or trained")
        if is_checkpoint(encoder):
            self.s2sft("export", encoder, to=made, tokenizer_dir=self.settings.tokenizer_dir)
        elif is_model_folder(encoder):
            made.symlink_to(encoder.resolve())
        else:
            self.convert(encoder, made, *self.conversion())

    def settle_start(self) -> None:
        """Take the defaults for a language model if the converted encoder is one.

        Raises:
            UserError: sources are to be predicted by an encoder that sees them in both directions.
        """
        s = self.settings
        if is_language_model(describe(self.encoder).sizes):
            s.take({why: dict(values) for why, values in LANGUAGE_MODEL.items()})
            s.take({DEFAULT: {"target_mask_prob": TARGET_MASK_PROB.get(s.method, "")}})
        elif float(s.source_loss_weight or 0):
            raise UserError(
                f"--source-loss-weight needs a language model, but --encoder {s.encoder} sees its sources in both "
                "directions"
            )

    def lacking(self) -> dict[str, Path]:
        """Return the options of ``s2sft convert`` that compute the missing parts of the language model head."""
        missing = describe(self.encoder).newly_initialized
        return {option: self.tokens / f"train.{side}" for option, (name, side) in HEAD.items() if name in missing}

    def complete_head(self) -> None:
        """Compute the missing parts of the language model head, if the encoder was converted here."""
        what = "the encoder has no language model head of its own"
        if self.encoder.is_symlink():
            self.say(f"{what}, and begins with a random one: give the folder that it was converted from")
        else:
            self.say(f"{what}: it is computed from the training texts")
            self.stage(self.output / "fitted", "compute the head", self.fit_head)

    def fit_head(self, made: Path) -> None:
        """Convert the encoder again, and compute the head from the training texts."""
        self.s2sft("convert", Path(self.settings.encoder), "--to", made, *self.conversion(), **self.lacking())

    def write_plan(self, made: Path) -> None:
        """Write the settings that depend on data, encoder and machine."""
        plan = finetune_plan.choose(self.settings, self.tokens, describe(self.encoder).sizes)
        plan["evaluation"] = evaluation_options(self.corpus / "valid.tgt", self.encoder / DICTIONARY)
        made.write_text(json.dumps(plan, indent=1), encoding="utf-8")

    def take_plan(self) -> None:
        """Load the settings of the plan, which may come from another machine, and print all settings."""
        s, file = self.settings, self.output / "plan.json"
        plan = read_json_object(file)
        for why, values in plan["settings"].items():
            s.take({why: read_values(self.declared, values, f"{file}: ", is_trusted=False)})
        if problems := list(option_problems(shlex.join(plan["evaluation"]), scoring_options())):
            raise UserError.of(f"{file}: evaluation {problem}" for problem in problems)
        s.fit_head = (self.output / "fitted").exists()
        self.evaluation, self.least = plan["evaluation"], plan["least"]
        names = [name for name in self.declared if getattr(s, name) not in UNSET]
        told = {name: {"value": getattr(s, name), "why": s.source_of[name] or DEFAULT} for name in names}
        self.say("settings:")
        for name, each in told.items():
            print(f"  {name:18} {each['value']!s:15} {each['why']}")
        for side, share in plan["cut"].items():
            print(f"  {100 * share:.1f} % of the {side}s are longer, and are cut", flush=True)
        self.note(package_version=__version__, settings=told, device=plan["device"], cut=plan["cut"])

    def report(self) -> None:
        """Print examples, the scores with warnings, and where the files are."""
        show(self.record.get("examples", []))
        is_test = "test" in self.files
        print(f"{'test' if is_test else 'validation'} set:")
        print((self.output / "scored.scores").read_text(encoding="utf-8"), end="")
        if not is_test:
            print("checkpoint and search were chosen on a part of this set: use a test set for an unbiased score")
        for warning in self.record.get("warnings", []):
            print(f"warning: {warning}")
        seconds = sum(self.record["seconds"].values())
        self.say(f"{seconds:,.0f} s in all; settings, seconds and scores are in {self.output / 'finetune.json'}")
        self.say(f"the model is {self.model}")


def read_given(values: Mapping[str, object]) -> dict[str, Any]:
    """Check the values of options by name, and return them. A layout may have no option that is not about it.

    Raises:
        UserError: lists every value that is not allowed, and every unknown name.
    """
    return read_values({**RUN_OPTIONS, **SETTINGS}, values, is_trusted=False)


def is_checkpoint(encoder: Path) -> bool:
    """Return whether a file is a checkpoint of a training; others, such as .gguf or .safetensors, are converted."""
    return encoder.is_file() and encoder.suffix == ".pt"


_PAIRS = Benchmark("Pairs of the user's own.", "", lambda options, malformed: {}, {}, Finetuning)


def describe(encoder: Path) -> "PretrainedEncoder":
    """Return the description of an encoder.

    Raises:
        UserError: it cannot be read, or is an encoder-decoder.
    """
    from s2sft_fairseq.models.pretrained_checkpoint import open_encoder  # imports PyTorch
    from s2sft_fairseq.models.unilm_config import UnilmConfig

    found = open_encoder(UnilmConfig(pretrained=str(encoder)))
    assert found is not None
    return found


def finetune(
    encoder: str | Path,
    train: Any,
    valid: Any = None,
    test: Any = None,
    *,
    output: str | Path,
    source: str | Iterable[str] = USUAL.source,
    target: str = USUAL.target,
    further: Sequence[str] = (),
    **settings: Any,
) -> "Seq2Seq":
    """Fine-tune an encoder to write targets for sources: ``s2sft finetune`` in Python.

    If it was interrupted, a call with the same arguments continues the work. When all is done, it only loads the model.
    A call with more ``updates`` or ``epochs`` goes on from that model.

    Args:
        encoder: a folder or a checkpoint; see ``s2sft finetune --help``.
        train: the pairs: the path of a file, two paths of line-aligned files, a DataFrame, or an iterable of
            ``(source, target)`` or of dicts, such as a list, a generator or a data set of the package ``datasets``.
        valid: the validation set in the same form; None: hold out a part of `train`.
        test: the test set in the same form; None: no test set.
        output: the folder to write.
        source: the key of dicts, or the column, that is the source; or several that make it up.
        target: the key of the target, a text or a list of references.
        further: options of ``s2sft train``, which have precedence.
        settings: the options of ``s2sft finetune``, with ``_`` for ``-``: ``method``, ``metric``, ``epochs``,
            ``updates``, ``batch``, ``lr``, ``max_source``, ``max_target``, ``beam``, ``lora_rank``, ``seed``, ``cpu``
            and so on.

    Returns:
        The model of the best checkpoint.

    Raises:
        UserError: lists what is wrong with the arguments or the pairs, or what differs from an earlier call.
    """
    from s2sft_fairseq import Seq2Seq
    from s2sft_fairseq.cli import call

    given = read_given({"encoder": encoder, "output": output, **settings})
    if not isinstance(further, list | tuple) or not all(isinstance(word, str) for word in further):
        raise UserError(f"further must be a list of texts, such as ['--clip-norm', '1'], but is {shown(further)}")
    fields = Fields.of(source, target)
    sets = {"train": train, "valid": valid, "test": test}
    finetuning = Finetuning({}, fields, given, further, call, sets)
    try:
        finetuning.run()
    except SystemExit as error:
        if error.code == INTERRUPTED:  # a training ends in this way after Ctrl-C
            raise KeyboardInterrupt from None
        raise
    return Seq2Seq.from_pretrained(finetuning.model)
