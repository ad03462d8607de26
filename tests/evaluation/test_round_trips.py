"""References that go through a tokenizer, as all hypotheses do, reach their own score.

The test takes the options of ``s2sft evaluate`` from each recipe. docs/evaluation.md says how much real data loses, and
why.
"""

import gzip
import json
import shlex
from pathlib import Path

import pytest
from raw_corpora import RAW
from tokenizer_folders import write_byte_level, write_sentencepiece

from s2sft_fairseq.commands.recipe import open_recipe
from s2sft_fairseq.tokenization.folder import open_tokenizer

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data"
# Without METEOR, which needs Java and is slow.
WITHOUT_METEOR = {"qg": ("coco_bleu", "coco_rouge"), "zh": ("coco_bleu", "rouge")}
# The documented options for an encoder without capitals and accents.
UNCASED = ("--lowercase", "--strip-accents")

# References as in the raw files.
TEXTS = {
    "cnn_dailymail": [
        "The Football Association (FA) has charged the player. [X_SEP] He didn't pay the $3,000 (or more).",
        "\"It's the U.S. team's 3.5th [sic] win,\" said O'Brien & co. [X_SEP] Well-known 21-year-old won it - again.",
    ],
    "xsum": [
        "The Football Association (FA) has charged the player.",
        "\"It's the best day,\" he said - don't forget [it].",
    ],
    "gigaword": [
        "us september factory orders up #.# percent",
        "indian pm 's announcement on -lrb- kashmir -rrb- polls : UNK",
        "u.s. ##-year-old do n't win `` #,### dollars '' again",
    ],
    "squad_qg": [
        "What isn't Beyoncé's first \"solo\" album (2003)?",
        "Who won U.S. v. Smith for $3.50 or Example.com?",
    ],
    "persona_chat": [
        "hi , how are you doing today ?",
        "i'm good . i don't like dogs ... but i do not mind my son's well-known cats !",
        "they've 2 (or 3) of them , don't they ?",
    ],
    "coqa": ["white", "Yes, it's 5,000 dollars.", "Mrs. O'Brien's red-brick house"],
    "e2e": [
        "The Eagle is a £20-25 café near the riverside, it isn't family-friendly.",
        "Its customer rating is 3 out of 5; try Zizzi!",
    ],
    "multi30k": ["Ein Boston-Terrier läuft über saftig-grünes Gras, vor einem weißen Zaun.", 'Hier steht "Stop"!'],
    "iwslt14": ["It's 10:30 -- and (really) that's \"it,\" isn't it?", "We don't know; 1,000 people do."],
    "wmt10": ["The U.K.'s GDP grew 3.5%, it said.", "«Être ou ne pas être»?"],
    "webnlg": ["Aaron Boogaard's (1986) club is in Wichita, U.S.", "It isn't 1,703.25 m high."],
    "wikilingua": ["Don't peel the carrots. Cut them into 1/2-inch pieces (or less)."],
    "xgiga": ["l'été à nîmes : 3 morts et 21 blessés", "la france n'ira pas"],
    "xqg": ["中国的首都是哪里?", "NBA 有多少支球队?"],
}
OPTIONS = {"xgiga": [("--lang", "fr"), ("--lang", "en"), ("--lang", "zh")]}
OPTIONS |= {"xqg": [("--lang", "zh"), ("--lang", "en")], "wmt10": [("--langs", "fr")]}
QUESTIONS = ["What isn't Beyoncé's first \"solo\" album (2003)?", "Who paid $3,000 & more to well-known Notre-Dame?"]
TOKENIZED = [
    "what is n't beyoncé 's first `` solo '' album -lrb- 2003 -rrb- ?",
    "who paid $ 3,000 &amp; more to well-known notre-dame ?",
]


def scoring(task, *words):
    """Return the options of ``s2sft evaluate`` that a recipe sets, without those of the baseline."""
    options = shlex.split(open_recipe(task, words).settings.evaluation)
    at = options.index("--lead") if "--lead" in options else len(options)
    return (*options[:at], *options[at + 2 :])


def write_word_pieces(folder, texts, lower):
    """Write a vocabulary of the letters of these texts, so that no word is unknown."""
    letters = {letter for text in texts for letter in (text.lower() if lower else text) if not letter.isspace()}
    if lower:
        letters |= set("aou")  # the base letters of accented ones
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *sorted(letters), *(f"##{c}" for c in sorted(letters))]
    (folder / "vocab.txt").write_text("".join(f"{piece}\n" for piece in pieces), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": lower}))


@pytest.fixture(params=["cased", "uncased", "byte_level"])
def kind(request):
    return request.param


def through(tokenizer, text, separator="[X_SEP]"):
    """Encode and decode a text. The separator is a token of its own."""
    parts = tokenizer.encode_batch([part.strip() for part in text.split(separator)])
    return f" {separator} ".join(map(tokenizer.decode, parts))


@pytest.fixture
def score(call_command, tmp_path):
    """Score texts with the options of a recipe; return the values by name."""

    def run(texts, references, options):
        task = options[options.index("--task") + 1]
        metrics = ("--metrics", *WITHOUT_METEOR[task]) if task in WITHOUT_METEOR and "--metrics" not in options else ()
        for name, lines in (("hyp", texts), ("ref", references), ("src", map(str, range(len(texts))))):
            (tmp_path / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        files = ("--hyp", "hyp", "--ref", "ref", "--src", "src", "--json", "out.json")
        call_command("evaluate", *options, *metrics, *files)
        found = json.loads((tmp_path / "out.json").read_text())["systems"]["hyp"]["scores"]
        return {one["name"]: one["value"] for one in found if not one["name"].startswith("Distinct")}

    return run


@pytest.fixture
def tokenizer(kind, tmp_path):
    """``tokenizer(texts)``: a tokenizer of this kind that knows the letters of the texts."""

    def make(texts):
        folder = tmp_path / "tokenizer"
        folder.mkdir()
        if kind == "byte_level":
            write_byte_level(folder)
        else:
            write_word_pieces(folder, texts, kind == "uncased")
        return open_tokenizer(folder)

    return make


@pytest.mark.parametrize(("task", "words"), [(task, words) for task in TEXTS for words in OPTIONS.get(task, [()])])
def test_references_reach_their_own_score(task, words, kind, tokenizer, score):
    texts, options = TEXTS[task], scoring(task, *words)
    if kind == "uncased" and task != "coqa":  # its metric has its own normalization
        options += UNCASED
    made = tokenizer(texts)
    found = score([through(made, text) for text in texts], texts, options)
    assert found == pytest.approx(score(texts, texts, options), abs=1e-9)
    best = 100 * 4 / 3 if task == "persona_chat" else 100
    assert found[next(iter(found))] == pytest.approx(best)


def test_published_references_of_questions(kind, tokenizer, score):
    """The same questions, tokenized by Du et al.: marks, contractions, quotes, brackets, numbers, hyphens."""
    options = [*scoring("squad_qg", "--set", "tgt-test"), *(UNCASED if kind == "uncased" else ())]
    made = tokenizer(QUESTIONS)
    found = score([through(made, text) for text in QUESTIONS], TOKENIZED, options)
    assert found == pytest.approx(dict.fromkeys(found, 100))


def test_every_recipe_of_texts_is_here():
    assert set(TEXTS) == set(RAW)


def test_brackets_of_summaries(score):
    """ROUGE of a summary compared with itself is 100."""
    text = ["The Football Association (FA) has charged the player."]
    for task in ("cnndm", "xsum"):
        found = score(text, text, ["--task", task])
        assert found == pytest.approx(dict.fromkeys(found, 100))


REAL = {
    "gigaword": "gigaword/test.tgt",
    "squad_qg": "squad_qg/test.tgt.gz",
    "e2e": "e2e/test.tgt",
    "multi30k": "multi30k_en-de/test.tgt",
}
# The loss of the first score; docs/evaluation.md says why.
LOST = {"e2e": 0.2, "multi30k": 0.01}


@pytest.mark.parametrize("vocabulary", ["cased", "uncased"])
@pytest.mark.parametrize("task", REAL)
def test_real_references(task, vocabulary, score, tmp_path):
    if not SHARED.is_dir():
        pytest.skip("../shared/data, the folder with the real data sets, is not beside this checkout")
    path = SHARED / REAL[task]
    data = path.read_bytes()
    texts = (gzip.decompress(data) if path.suffix == ".gz" else data).decode().split("\n")[:100]
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    (folder / "vocab.txt").symlink_to(SHARED / "vocab" / f"bert-base-{vocabulary}-vocab.txt")
    tokenizer = open_tokenizer(folder)
    options = [*scoring(task), *(UNCASED if vocabulary == "uncased" else ())]
    found = score([through(tokenizer, text) for text in texts], texts, options)
    wanted = score(texts, texts, options)
    for name, value in found.items():
        assert value >= wanted[name] - LOST.get(task, 1e-9)


def test_full_width_marks(score, tmp_path):
    """SentencePiece writes NFKC: it replaces a full-width mark by another character (docs/evaluation.md)."""
    tokenizer = open_tokenizer(write_sentencepiece(tmp_path / "tokenizer"))
    assert through(tokenizer, "the dog jumps？") == "the dog jumps?"
    found = score(["the dog jumps?"], ["the dog jumps？"], ["--task", "zh", "--metrics", "rouge"])
    assert found["ROUGE-1"] == pytest.approx(100 * 11 / 12)
