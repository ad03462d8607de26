"""Questions from whole articles: extend an encoder to 8,192 positions, and train it to use them.

    python scripts/experiments/long_documents.py --raw squad --encoder MINILM --output out

RAW holds SQuAD's train-v1.1.json and dev-v1.1.json (or .json.gz). A source is a document and an answer that it
contains; the target is the question. There are three trainings:

1. ``passages``: the document is the paragraph that contains the answer. The encoder has 8,192 positions. Every third
   layer sees all positions, the others see 256 positions to either side, like the layers of Longformer, which was made
   from RoBERTa.
2. ``articles``: continues from 1 with whole articles, or as many of their paragraphs as fit.
3. ``cut``: continues from 1 with the same articles, but sources are cut to 512 positions.

Hypothesis, written before the first run: 2 has a lower held-out loss and a higher ROUGE-L than 3, because most answers
are beyond the first 512 positions; both are worse than 1, whose documents are the right paragraph.

Trainings that are done are not repeated. Each writes its losses and scores to OUTPUT/RUN/finetune.json, and the scored
hypotheses to OUTPUT/RUN/scored.txt.
"""

import argparse
import json
import random
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from s2sft_fairseq import cli
from s2sft_fairseq.corpora.reading import read_data_list, require
from s2sft_fairseq.tokenization.folder import open_tokenizer

POSITIONS, TARGET = 8192, 32
FIELDS = ("--source", "document", "answer", "--target", "question")
KEPT = ("--layout", "--source-truncation right,right", "--method", "pseudo_masked")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--raw", type=Path, required=True, metavar="DIR")
    parser.add_argument("--encoder", required=True, metavar="DIR", help="with 512 learned positions")
    parser.add_argument("--output", type=Path, required=True, metavar="DIR")
    parser.add_argument("--passage-updates", type=int, default=300, help="of 16 pairs")
    parser.add_argument("--article-updates", type=int, default=200, help="of --article-batch pairs")
    parser.add_argument("--article-batch", type=int, default=2)
    parser.add_argument("--scored-on", type=int, default=200, help="questions of the development articles")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    out: Path = options.output
    plain, encoder = out / "plain", out / "encoder"
    if not plain.exists():
        run("convert", options.encoder, "--to", plain)
    articles = {"train": options.article_updates * options.article_batch, "dev": 2 * options.scored_on}
    for kind, most in articles.items():
        write_pairs(options.raw / f"{kind}-v1.1.json", out, kind, plain, options.seed, most)
    if not encoder.exists():
        words = ["--max-positions", POSITIONS, "--local-attention-window", 512, "--global-attention-every", 3]
        words += ["--fit-head", out / "tokens.src", "--output-prior", out / "tokens.tgt"]
        run("convert", options.encoder, "--to", encoder, *words)
    trainings = {
        "passages": (encoder, "passage", 384, options.passage_updates, 16, "3e-4"),
        "articles": (out / "passages" / "model", "article", POSITIONS - TARGET - 1, options.article_updates, 0, "1e-4"),
        "cut": (out / "passages" / "model", "article", 511 - TARGET, options.article_updates, 0, "1e-4"),
    }
    for name, (start, kind, max_source, updates, batch, lr) in trainings.items():
        batch = batch or options.article_batch
        words = ["--encoder", start, "--output", out / name, *FIELDS, *KEPT, "--cpu", "--seed", options.seed]
        words += ["--train", out / f"train.{kind}.jsonl", "--valid", out / f"dev.{kind}.jsonl"]
        words += ["--max-source", max_source, "--max-target", TARGET, "--updates", updates]
        words += ["--batch", batch, "--device-batch", min(batch, 16), "--lr", lr]
        words += ["--candidates", 1, "--chosen-on", 20, "--held-out", 100, "--scored-on", options.scored_on]
        run("finetune", *words)


def run(*words: object) -> None:
    """Run a command of s2sft; end the process if it fails."""
    if status := cli.main([str(word) for word in words]):
        sys.exit(status)


def write_pairs(raw: Path, out: Path, kind: str, folder: Path, seed: int, most: int) -> None:
    """Write a question of every paragraph to KIND.passage.jsonl, and a random ``most`` of them to KIND.article.jsonl.

    For the development set, both files have the same ``most`` questions.
    """
    files = {name: out / f"{kind}.{name}.jsonl" for name in ("passage", "article")}
    if all(path.exists() for path in files.values()):
        return
    tokenizer = open_tokenizer(folder)
    chosen = random.Random(seed)
    data = read_data_list(*require(raw.parent, raw.name))
    pairs = [pair for article in data for pair in of_article(article["paragraphs"], tokenizer, chosen)]
    chosen.shuffle(pairs)
    articles = pairs[:most]
    for name, path in files.items():
        some = pairs if (kind, name) == ("train", "passage") else articles
        lines = [{"document": pair[name], "answer": pair["answer"], "question": pair["question"]} for pair in some]
        path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    if kind == "train":
        for name, field in (("src", "passage"), ("tgt", "question")):
            lines = [tokenizer.encode(pair[field]) + "\n" for pair in pairs]
            (out / f"tokens.{name}").write_text("".join(lines), encoding="utf-8")
    inside = sum(pair["place"] < 512 for pair in articles) / len(articles)
    mean = sum(pair["length"] for pair in articles) / len(articles)
    print(f"{kind}: articles of {mean:,.0f} positions; in {inside:.1%} the paragraph begins within the first 512")


def of_article(paragraphs: Sequence[dict[str, Any]], tokenizer: Any, chosen: random.Random) -> Iterator[dict[str, Any]]:
    """Yield a question of each paragraph, with as much of the article around it as fits, from a random start."""
    texts = [paragraph["context"] for paragraph in paragraphs]
    lengths = [len(tokenizer.encode(text).split()) for text in texts]
    room = POSITIONS - 2 * TARGET - 32  # leave room for answer, question and special symbols
    for index, paragraph in enumerate(paragraphs):
        if not paragraph["qas"]:
            continue
        first, last = index, index + 1
        in_front = chosen.randint(0, room)  # positions before the paragraph, if the article has as many
        while first > 0 and sum(lengths[first - 1 : last]) <= room and sum(lengths[first - 1 : index]) <= in_front:
            first -= 1
        while last < len(texts) and sum(lengths[first : last + 1]) <= room:
            last += 1
        question = chosen.choice(paragraph["qas"])
        yield {
            "passage": texts[index],
            "article": " ".join(texts[first:last]),
            "answer": question["answers"][0]["text"],
            "question": question["question"],
            "place": sum(lengths[first:index]),
            "length": sum(lengths[first:last]),
        }


if __name__ == "__main__":
    main()
