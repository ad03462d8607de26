"""Ablations of ERNIE-GEN's and UniLMv2's pre-training, from small random weights: which orderings of the papers show?

    python scripts/experiments/ablations.py --text books --data DATA --output out

TEXT has train.txt and valid.txt: one paragraph per line, and an empty line after each document. DATA holds the folders
``e2e``, as for ``blocks.py``, and ``glue`` with SST-2. ``unilm_tiny`` is pre-trained with each row and seed; tokens
attend mostly to their neighbours at first, without which placeholders learn too late (``random_starts.py``). All
updates have equally many positions, so that objectives with more placeholders see less text. Each model is fine-tuned
on E2E, and those of UniLMv2 also on SST-2, as in the paper. After 200 and 600 updates, 200 test sources are scored in
two ways: ROUGE-L of texts that are written greedily, and the bits per token of the first reference, given the source
and the tokens before (lower is better). Bits tell models apart that still write the same few texts for all sources, but
cannot show what noise is for, since no token before is the model's own.

OUTPUT/ablations.md has scores and differences with intervals over seeds and sentences. Stages that are done are not
repeated. Several processes may share OUTPUT if they have different seeds or rows (``--methods``) and ``--train-only``:
begin with one, until it has made the files that all need. As in ``learning_curves.py``, a run whose scores are in
SCORES is not repeated.

A first version had BERT's vocabulary of 30,522 tokens, 2,000 updates of pre-training, and 800 updates of 16 pairs with
ROUGE-L only. Five of its models (seed 1) wrote 5 to 35 different texts for the 200 sources, so no ordering could show.
That is why the vocabulary has 4,000 tokens now, of TEXT and the pairs. The learning rate of fine-tuning is the better
one of 1e-3 and 3e-3 by training loss after 400 updates of "neither".

Hypotheses, which are the orderings of the papers:

1. ERNIE-GEN, Table 7: with noise, in pre-training and fine-tuning, scores are higher than without it.
2. ERNIE-GEN, Table 7: with span-by-span generation, here in pre-training only, scores are higher than without it.
3. ERNIE-GEN, Table 8: infilling is above typical generation, both without noise.
4. UniLMv2, Table 6: AE + PAR is above AE, AR, PAR, and AE + AR.
5. UniLMv2, Table 6: PAR is above AE and AR on SST-2.
6. Each kind of pre-training is above random weights with the same fine-tuning. This was added after the first five
   had been run.
"""

import argparse
import json
import math
import shutil
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
from blocks import source_lines
from intervals import interval, table
from learning_curves import Curves
from numpy.typing import NDArray
from random_starts import STARTS
from tokenizers import BertWordPieceTokenizer

from s2sft_fairseq import Seq2Seq, cli
from s2sft_fairseq.data.text_files import write_lines
from s2sft_fairseq.recipes.engine import options


class Row(NamedTuple):
    """A pre-training, and the fine-tuning for it on E2E. Without a preset there is no pre-training."""

    preset: str | None
    pretraining: tuple[str, ...] = ()
    finetuning: tuple[str, ...] = ()
    word_flow_only: bool = False


_INFILLING = ("--finetune-method", "infilling")
_WITH_NOISE = (*_INFILLING, "--noise-prob", "0.5")
# Table 7's caption has the shares of noise in pre-training.
ROWS = {
    "noise, spans": Row("ernie-gen-base", ("--noise-prob", "0.05"), _WITH_NOISE),
    "noise": Row("ernie-gen-base", ("--noise-prob", "0.2"), _WITH_NOISE, word_flow_only=True),
    "spans": Row("ernie-gen-base", ("--noise-prob", "0"), _INFILLING),
    "neither": Row("ernie-gen-table8-infilling", (), _INFILLING),
    "typical": Row("ernie-gen-table8-typical", (), ("--finetune-method", "causal")),
    # Pseudo-masked fine-tuning with whole targets, which learns faster (learning_curves.py).
    **{
        name.upper(): Row(f"unilmv2-table6-{name}", (), ("--target-mask-prob", "0"))
        for name in ("ae", "ar", "par", "ae+ar", "ae+par")
    },
    "random, infilling": Row(None, (), _INFILLING),
    "random, pseudo-masked": Row(None, (), ("--target-mask-prob", "0")),
    "random, causal": Row(None, (), ("--finetune-method", "causal")),
}
UNILMV2 = [name for name, row in ROWS.items() if row.preset and row.preset.startswith("unilmv2")]
ORDERINGS = (
    ("noise", "neither"),
    ("noise, spans", "spans"),
    ("spans", "neither"),
    ("noise, spans", "noise"),
    ("neither", "typical"),
    *(("AE+PAR", other) for other in ("AE", "AR", "PAR", "AE+AR")),
    ("PAR", "AE"),
    ("PAR", "AR"),
    ("neither", "random, infilling"),
    *((name, "random, pseudo-masked") for name in UNILMV2),
    ("typical", "random, causal"),
)
"""Pairs of rows, the better one in the papers, or the pre-trained one, first."""
BUDGETS = (200, 600)
VOCABULARY = 4000
RANDOM = ("--arch", "unilm_tiny", *STARTS["local"])
OF_TEXT = (*RANDOM, "--tokens-per-sample", "128", "--lr", "2e-3", "--update-freq", "1")
OF_TEXT += ("--attention-dropout", "0", "--cpu", "--num-workers", "0")
OF_CLASSES = options(updates=400, batch=32, device_batch=32, lr="5e-4", limit=8000, workers=1, cpu=True)


class Ablations(Curves):
    """Pre-train, then fine-tune as the learning curves do, and on SST-2."""

    options_of: ClassVar = {
        name: row.finetuning if row.preset else (*RANDOM, "--random-init", *row.finetuning)
        for name, row in ROWS.items()
    }
    optimization = options(batch_size=64, lr="3e-3", warmup_updates=20, dropout="0", attention_dropout="0")

    def run(self) -> None:
        """Train on E2E, then on SST-2."""
        super().run()
        runs = [(method, seed) for seed in self.given.seeds for method in self.given.methods if method in UNILMV2]
        for run in runs:
            if not self.sst2_file(*run).exists():
                self.stage(self.sst2_file(*run), f"{self.run_folder(*run).name}, SST-2", partial(self.classify, *run))

    def shared(self) -> Sequence[Callable[[Path], None]]:
        return self.texts, self.encoder, self.tokens, self.binarized

    def encoder(self, made: Path) -> None:
        """Train the vocabulary, and write its files."""
        trainer = BertWordPieceTokenizer(lowercase=True)
        texts = [self.given.text / "train.txt", *(self.output / "texts" / f"train.{side}" for side in ("src", "tgt"))]
        special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
        trainer.train(list(map(str, texts)), vocab_size=VOCABULARY, special_tokens=special, show_progress=False)
        made.mkdir()
        trainer.save_model(str(made))
        write_lines(made / "dict.txt", [f"{token} 1" for token in source_lines(made / "vocab.txt")])

    def begin(self, method: str, seed: int) -> Path | None:
        pretrained = self.output / "text" / self.run_folder(method, seed).name / "encoder"
        return pretrained if ROWS[method].preset else None

    def pretrain(self, method: str, seed: int) -> None:
        """Pre-train on the text, if the row has a preset."""
        row, begin = ROWS[method], self.begin(method, seed)
        if begin is None:
            return
        folder = begin.parent
        files = {"text": self.given.text, "tokenizer_dir": self.output / "encoder", "output": folder.parent}
        sizes = {"updates": self.given.pretraining_updates, "device_tokens": 1024, "seed": seed}
        words = options(run=folder.name, **files, **sizes, word_flow_only=row.word_flow_only)
        self.s2sft("pretrain", row.preset, *words, "--", *OF_TEXT, *row.pretraining)

    def curve(self, method: str, seed: int, made: Path) -> None:
        self.pretrain(method, seed)
        super().curve(method, seed, made)

    def evaluate(self, folder: Path, budget: int) -> None:
        """Also compute the bits per token of the first reference of each source."""
        model = Seq2Seq.from_pretrained(folder / "checkpoint_last.pt", self.output / "encoder", device="cpu")
        texts = self.output / "texts"
        references = [json.loads(line)["refs"][0] for line in source_lines(texts / "test.refs.jsonl")]
        scores = model.score(source_lines(texts / "test.src"), references)
        bits = [round(-score.total / len(score.log_probs) / math.log(2), 4) for score in scores]
        (folder / f"{budget}-bits.json").write_text(json.dumps(bits), encoding="utf-8")
        super().evaluate(folder, budget)

    def scores_of(self, folder: Path) -> dict[str, list[float]]:
        bits = {f"{budget}, bits": folder / f"{budget}-bits.json" for budget in self.budgets}
        return super().scores_of(folder) | {name: read(file) for name, file in bits.items()}

    def sst2_file(self, method: str, seed: int) -> Path:
        """Return the file that says for each text of SST-2's development set whether its class is right."""
        scores = self.scores_file(method, seed)
        return scores.with_name(f"{scores.stem}-sst-2.json")

    def classify(self, method: str, seed: int, made: Path) -> None:
        """Fine-tune on SST-2 and write which classes are right."""
        self.pretrain(method, seed)
        output = self.run_folder(method, seed) / "sst-2"
        named = {"encoder": self.begin(method, seed), "output": output, "run": "run", "seed": seed}
        raw = self.given.data.resolve() / "glue"
        self.s2sft("recipe", "glue", *options(glue_task="sst-2", raw=raw, **named), *OF_CLASSES)
        predicted = [line.split("\t")[1] for line in source_lines(output / "run" / "valid.tsv")[1:]]
        right = source_lines(output / "corpus" / "valid.label")
        made.write_text(json.dumps([a == b for a, b in zip(predicted, right, strict=True)]), encoding="utf-8")
        shutil.rmtree(output)


def tabulate(ablations: Ablations, path: Path) -> None:
    """Write the scores of the rows, and the differences of the papers' orderings, with their intervals."""
    scores: dict[str, dict[str, NDArray[np.float64]]] = {}
    for name in ROWS:
        of_seeds = [read(ablations.scores_file(name, seed)) for seed in ablations.given.seeds]
        scores[name] = {column: np.array([of_seed[column] for of_seed in of_seeds]) for column in of_seeds[0]}
        if name in UNILMV2:
            right = [read(ablations.sst2_file(name, seed)) for seed in ablations.given.seeds]
            scores[name]["SST-2"] = 100 * np.array(right, float)
    columns = list(scores[UNILMV2[0]])
    rows = {name: [interval(of[column]) if column in of else "" for column in columns] for name, of in scores.items()}
    differences = {}
    for better, worse in ORDERINGS:
        both = [column for column in columns if column in scores[better] and column in scores[worse]]
        found = [interval(scores[better][column] - scores[worse][column]) for column in both]
        cells = [f"{difference}, {difference.verdict}" for difference in found]
        differences[f"{better} - {worse}"] = cells + [""] * (len(columns) - len(cells))
    text = f"{table(columns, rows)}\nDifferences:\n\n{table(columns, differences)}"
    path.write_text(f"{text}\nBits are per token; lower is better.\n", encoding="utf-8")


def read(file: Path) -> Any:
    """Return the content of a JSON file."""
    return json.loads(file.read_text(encoding="utf-8"))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path, required=True, metavar="DIR")
    parser.add_argument("--data", type=Path, required=True, metavar="DIR")
    parser.add_argument("--output", type=Path, required=True, metavar="DIR")
    parser.add_argument("--scores", type=Path, metavar="DIR", help="(default: OUTPUT/scores)")
    parser.set_defaults(budgets=BUDGETS)
    parser.add_argument("--pretraining-updates", type=int, default=3000, metavar="N", help="(default: 3000)")
    named = f"of {', '.join(map(repr, ROWS))} (default: all)"
    parser.add_argument("--methods", nargs="+", choices=ROWS, default=list(ROWS), metavar="ROW", help=named)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5], metavar="N", help="(default: 1 to 5)")
    parser.add_argument("--sources", type=int, default=200, metavar="N", help="of the test set (default: 200)")
    parser.add_argument("--train-only", action="store_true", help="leave the table to a later run")
    given = parser.parse_args()
    ablations = Ablations(given, "e2e")
    status = cli.guarded("ablations", ablations.run)
    if not status and not given.train_only:
        tabulate(ablations, given.output / "ablations.md")
    return status


if __name__ == "__main__":
    sys.exit(main())
