"""Split raw text into BERT's word pieces, separated by spaces, for s2sft preprocess (fairseq-preprocess)."""

import argparse
import operator
from itertools import groupby
from pathlib import Path

from s2sft_fairseq.data.text_files import check_texts
from s2sft_fairseq.data.wordpiece import WordPiece, tokenize_file
from s2sft_fairseq.errors import UserError


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--vocab", type=Path, required=True, metavar="FILE", help="the pretrained model's vocab.txt")
    case = parser.add_mutually_exclusive_group(required=True)
    case.add_argument("--lower", action="store_true", help="lower-case and strip accents, as uncased models need")
    case.add_argument("--cased", action="store_true", help="keep case and accents, as cased models need")
    parser.add_argument(
        "--input", type=Path, nargs="+", required=True, metavar="FILE",
        help="raw text, one example a line; files that differ in their last suffix only (train.src, train.tgt) "
        "are line-aligned and must have equally many lines",
    )  # fmt: skip
    parser.add_argument(
        "--output-dir", type=Path, required=True, metavar="DIR", help="folder to write to, under the same names"
    )
    args = parser.parse_args()

    outputs = {path: args.output_dir / path.name for path in args.input}
    check_outputs(outputs)
    without_suffix = operator.methodcaller("with_suffix", "")
    groups = [list(group) for _, group in groupby(sorted(outputs, key=without_suffix), key=without_suffix)]
    stats = check_texts(groups, allow_crlf=True)
    wordpiece = WordPiece(args.vocab, args.lower)
    for file in stats:
        print(f"{outputs[file.path]}: {tokenize_file(wordpiece, file.path, outputs[file.path], file.lines)}")


def check_outputs(outputs: dict[Path, Path]) -> None:
    """Refuse to write over the input or twice to the same file."""
    problems = [
        f"--output-dir {target.parent} holds the input {source} itself; give another folder"
        for source, target in outputs.items()
        if source.resolve() == target.resolve()
    ]
    for name in {target.name for target in outputs.values()}:
        same = [str(source) for source, target in outputs.items() if target.name == name]
        if len(same) > 1:
            problems.append(f"--input needs files of different names, found {' and '.join(sorted(same))}")
    if problems:
        raise UserError.of(sorted(problems))


if __name__ == "__main__":
    main()
