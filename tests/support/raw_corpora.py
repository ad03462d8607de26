"""Small benchmarks in the raw formats of their authors, for the parsers and the recipes."""

import csv
import gzip
import hashlib
import json
from collections.abc import Callable, Iterable
from pathlib import Path

SIZES = {"train": 12, "valid": 4, "test": 4}
WORDS = (
    *("the", "old", "tower", "stands", "near", "river", "bridge", "and", "many", "small", "boats", "pass", "it"),
    *("every", "warm", "summer", "day"),
)


def sentence(number: int, length: int = 8) -> str:
    """Return a sentence that is different for each number."""
    chosen = [WORDS[(number * 5 + place * (1 + number % 3)) % len(WORDS)] for place in range(length)]
    return f"{' '.join(chosen)} {number} ."


def write(path: Path, text: str) -> Path:
    """Write a file, compressed if its name ends in ``.gz``; make its folder if it is missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


def write_lines(path: Path, lines: Iterable[str]) -> Path:
    """Write a file of these lines."""
    return write(path, "".join(f"{line}\n" for line in lines))


def squad_article(title: str, questions: int = 2) -> dict:
    """Return an article with a paragraph and this many questions; the answer to the n-th is its n-th word."""
    context = f"{title.replace('_', ' ')} tells :\n{sentence(len(title))}"
    words = context.split()
    asked = [
        {
            "id": f"{title}-{number}",
            "question": f"which word is number {number} in {title} ?",
            "answers": [{"text": words[number], "answer_start": context.index(words[number])}],
        }
        for number in range(questions)
    ]
    return {"title": title, "paragraphs": [{"context": context, "qas": asked}]}


def squad(folder: Path) -> None:
    train = [squad_article(title) for title in ("Tower", "River_bank", "Boat", "Bridge_(road)", "Summer", "Old_town")]
    write(folder / "train-v1.1.json", json.dumps({"version": "1.1", "data": train}))
    write(folder / "dev-v1.1.json.gz", json.dumps({"version": "1.1", "data": [squad_article("Harbour", 4)]}))
    write_lines(folder / "doclist-test.txt", ["River_bank", "Old_town"])


def e2e(folder: Path) -> None:
    names = {"train": "trainset.csv", "valid": "devset.csv", "test": "testset_w_refs.csv"}
    folder.mkdir(parents=True, exist_ok=True)
    for split, file_name in names.items():
        with (folder / file_name).open("w", encoding="utf-8", newline="") as file:
            rows = csv.writer(file)
            rows.writerow(["mr", "ref"])
            for number in range(SIZES[split]):
                meaning = (
                    f"name[The {WORDS[number // 2]}], eatType[pub], priceRange[£20-25], customer rating[5 out of 5]"
                )
                rows.writerow([meaning, f'A pub, "The {WORDS[number // 2]}", {sentence(number)}'])


def line_aligned(pattern: str, *columns: str, valid: str = "valid", test: str = "test") -> Callable[[Path], None]:
    """Return a function that writes line-aligned files of these names."""

    def write_files(folder: Path) -> None:
        for split, name in {"train": "train", "valid": valid, "test": test}.items():
            for length, column in enumerate(reversed(columns), 4):
                lines = [sentence(number, length * 2) for number in range(SIZES[split])]
                write_lines(folder / pattern.format(split=name, column=column), lines)

    return write_files


def gigaword(folder: Path) -> None:
    files = {
        "train": ("train/train.article.txt.gz", "train/train.title.txt.gz"),
        "valid": ("train/valid.article.filter.txt", "train/valid.title.filter.txt"),
        "test": ("Giga/input.txt", "Giga/task1_ref0.txt"),
    }
    for split, (article, title) in files.items():
        write_lines(folder / article, (sentence(number, 12) for number in range(SIZES[split])))
        write_lines(folder / title, (sentence(number, 4) for number in range(SIZES[split])))


def multi30k(folder: Path) -> None:
    for column in ("en", "de"):
        for name, size in {"train": 12, "val": 4, "test_2016_flickr": 4, "test_2017_flickr": 3}.items():
            write_lines(folder / f"{name}.{column}.gz", (sentence(number) for number in range(size)))


def story(number: int) -> str:
    """Return a news story of two paragraphs and two highlights."""
    highlights = [f"@highlight\n\n{sentence(number + shift, 5)}\n" for shift in (1, 2)]
    return f"{sentence(number, 20)}\n\nA picture of {sentence(number)[:-2]}\n\n" + "\n".join(highlights)


def cnn_dailymail(folder: Path) -> None:
    start = 0
    for split, name in {"train": "all_train.txt", "valid": "all_val.txt", "test": "all_test.txt"}.items():
        urls = [f"http://news.example/{number}" for number in range(start, start + SIZES[split])]
        start += len(urls)
        write_lines(folder / name, urls)
        for number, url in enumerate(urls):
            paper = "cnn" if number % 2 else "dailymail"
            write(folder / paper / "stories" / f"{hashlib.sha1(url.encode()).hexdigest()}.story", story(number))


def xsum(folder: Path) -> None:
    ids: dict[str, list[str]] = {}
    for split, name in {"train": "train", "valid": "validation", "test": "test"}.items():
        ids[name] = [f"{name}{number}" for number in range(SIZES[split])]
        for number, identity in enumerate(ids[name]):
            text = (
                f"[SN]URL[SN]\nhttp://news.example/{identity}\n\n[SN]TITLE[SN]\n{sentence(number, 4)}\n\n"
                f"[SN]FIRST-SENTENCE[SN]\n{sentence(number)}\n\n[SN]RESTBODY[SN]\n"
                f"{sentence(number, 15)}\n{sentence(number + 1, 15)}\n"
            )
            write(folder / "bbc-summary-data" / f"{identity}.summary", text)
    write(folder / "XSum-TRAINING-DEV-TEST-SPLIT-90-5-5.json", json.dumps(ids))


def conversation(number: int, further: int = 0) -> dict:
    """Return a CoQA conversation of three questions, each with this many further answers."""

    def turns(what: str) -> list[dict]:
        return [{"turn_id": turn, "input_text": f"{what} {turn} of {number}"} for turn in (1, 2, 3)]

    added = {str(index): turns(f"answer {'abc'[index]}") for index in range(further)}
    return {
        "id": f"c{number}",
        "story": f"{sentence(number, 10)}\n{sentence(number + 1, 10)}",
        "questions": turns("question"),
        "answers": turns("answer"),
        **({"additional_answers": added} if further else {}),
    }


def coqa(folder: Path) -> None:
    for split, further in (("train", 0), ("dev", 3)):
        data = [conversation(number, further) for number in range(4)]
        write(folder / f"coqa-{split}-v1.0.json", json.dumps({"version": "1.0", "data": data}))


def persona_chat(folder: Path) -> None:
    for split, size in SIZES.items():
        lines = []
        for number in range(size // 2):
            said = [
                f"hello {number} ?\thi , {WORDS[number]} .\t\ta|hi , {WORDS[number]} .",
                "and you ?\ti am fine .\t\tb",
            ]
            texts = ["your persona: i like boats.", f"your persona: i am {number}.", *said]
            lines += [f"{place} {text}" for place, text in enumerate(texts, 1)]
        write_lines(folder / f"{split}_self_original.txt", lines)


def webnlg_file(entries: int, first: int = 0) -> str:
    """Return a file of the XML format, with two texts in English and one in Russian for each entry."""
    body = "".join(
        f"""<entry category="Airport" eid="Id{number}" shape="(X (X))" shape_type="NA" size="2">
      <originaltripleset><otriple>ignored | ignored | ignored</otriple></originaltripleset>
      <modifiedtripleset>
        <mtriple>Tower_{number} | location | Old_town</mtriple>
        <mtriple>Tower_{number} | runwayLength | "{number}.0"</mtriple>
      </modifiedtripleset>
      <lex comment="good" lid="Id1" lang="en">Tower {number} is in the old town.</lex>
      <lex comment="good" lid="Id2" lang="en">The old town has Tower {number}.</lex>
      <lex comment="" lid="Id3" lang="ru">Башня {number} в старом городе.</lex>
    </entry>"""
        for number in range(first, first + entries)
    )
    return f'<?xml version="1.0" encoding="UTF-8"?>\n<benchmark><entries>{body}</entries></benchmark>\n'


def webnlg(folder: Path) -> None:
    for language in ("en", "ru"):
        write(folder / language / "train" / "2triples" / "Airport.xml", webnlg_file(8))
        write(folder / language / "train" / "3triples" / "City.xml", webnlg_file(4, 8))
        write(folder / language / "dev" / "2triples" / "Airport.xml", webnlg_file(4, 12))
        name = f"rdf-to-text-generation-test-data-with-refs-{language}.xml"
        write(folder / language / "test" / name, webnlg_file(4, 16))


def chinese(folder: Path) -> None:
    """Write XQG in Chinese."""
    for split, name in {"train": "train", "valid": "dev", "test": "test"}.items():
        for column, text in {"e": "塔 在 河 边 {} 。", "a": "河 边 {}", "q": "塔 在 哪 里 {} ？"}.items():
            write_lines(folder / f"{name}.{column}.zh.lc", (text.format(number) for number in range(SIZES[split])))


def iwslt14(folder: Path) -> None:
    """Write training files of seven talks, each with a title and ten sentences, and test sets of two sentences."""
    for side, text in {"de": "Der Turm {} steht dort .", "en": "The tower {} is there ."}.items():
        lines = []
        for talk in range(7):
            lines += [
                f"<url>http://talks/{talk}</url>",
                f"<talkid>{talk}</talkid>",
                f"<title>{text.format(talk)}</title>",
            ]
            lines += [f" {text.format(10 * talk + number)} " for number in range(9)]
        write_lines(folder / f"train.tags.de-en.{side}", lines)
        for name in ("TED.dev2010", "TEDX.dev2012", "TED.tst2010", "TED.tst2011", "TED.tst2012"):
            segments = "".join(f'<seg id="{number}"> {text.format(number)} </seg>\n' for number in (1, 2))
            body = f'<doc docid="7" genre="lectures"><title>A &amp; B</title>\n<p>{segments}</p></doc>'
            write(
                folder / f"IWSLT14.{name}.de-en.{side}.xml", f"<?xml version='1.0'?><mteval><set>{body}</set></mteval>"
            )


# For each task, the columns of GLUE's labeled files and those of its test sets.
GLUE_COLUMNS = {
    "CoLA": ("source label mark sentence", "index sentence"),
    "SST-2": ("sentence label", "index sentence"),
    "MRPC": ("Quality,#1 ID,#2 ID,#1 String,#2 String", "index,#1 ID,#2 ID,#1 String,#2 String"),
    "STS-B": (
        "index genre filename year old_index source1 source2 sentence1 sentence2 score",
        "index genre filename year old_index source1 source2 sentence1 sentence2",
    ),
    "QQP": ("id qid1 qid2 question1 question2 is_duplicate", "id question1 question2"),
    "MNLI": (
        "index promptID pairID genre sentence1_parse sentence2_parse sentence1 sentence2 label1 gold_label",
        "index promptID pairID genre sentence1_parse sentence2_parse sentence1 sentence2",
    ),
    "QNLI": ("index question sentence label", "index question sentence"),
    "RTE": ("index sentence1 sentence2 label", "index sentence1 sentence2"),
    "WNLI": ("index sentence1 sentence2 label", "index sentence1 sentence2"),
}
GLUE_LABELS = {
    "MNLI": ("neutral", "entailment", "contradiction"),
    "QNLI": ("entailment", "not_entailment"),
    "RTE": ("not_entailment", "entailment"),
    "STS-B": ("2.500", "0.0", "5"),
}


def glue_file(path: Path, columns: str, labels: Iterable[str], header: bool = True) -> None:
    """Write a file of GLUE: its n-th row has the sentences n and n + 100, with quotes that are never closed."""
    names = columns.split("," if "," in columns else " ")
    rows = ["\t".join(names)] if header else []
    for number, label in enumerate(labels):
        values = {"index": str(number), "#1 ID": f"1{number}", "#2 ID": f"2{number}"}
        first, second = f'{sentence(number)} "said', sentence(number + 100, 5)
        texts = {"sentence1": first, "sentence2": second, "#1 String": first, "#2 String": second}
        texts |= {"question1": first, "question2": second, "question": first, "sentence": first}
        if "question" in names:
            texts["sentence"] = second
        cells = [texts.get(name) or values.get(name, "x") for name in names]
        for name in ("label", "Quality", "score", "is_duplicate", "gold_label"):
            if name in names:
                cells[names.index(name)] = label
        rows.append("\t".join(cells))
    write_lines(path, rows)


def glue(folder: Path) -> None:
    """Write all nine tasks: 12 training examples, 4 of each development set, 3 of each test set, 2 diagnostic ones."""
    for task, (labelled, test) in GLUE_COLUMNS.items():
        labels = GLUE_LABELS.get(task, ("1", "0"))
        kinds = ("_matched", "_mismatched") if task == "MNLI" else ("",)
        sizes = {"train": 12, **{f"dev{kind}": 4 for kind in kinds}}
        for name, size in sizes.items():
            chosen = [labels[number % len(labels)] for number in range(size)]
            glue_file(folder / task / f"{name}.tsv", labelled, chosen, header=task != "CoLA")
        for kind in kinds:
            glue_file(folder / task / f"test{kind}.tsv", test, ["?"] * 3)
    glue_file(folder / "diagnostic" / "diagnostic.tsv", "index,sentence1,sentence2", ["?"] * 2)


def squad_with_impossible(title: str) -> dict:
    """Return an article of SQuAD v2.0 whose last question has no answer."""
    article = squad_article(title, 3)
    *asked, last = article["paragraphs"][0]["qas"]
    for question in asked:
        question["is_impossible"] = False
    last |= {"is_impossible": True, "plausible_answers": last["answers"], "answers": []}
    return article


def squad_reading(folder: Path) -> None:
    """Write SQuAD v1.1 and v2.0."""
    squad(folder)
    for split, titles in (("train", ("Tower", "River_bank", "Boat")), ("dev", ("Harbour", "Old_town"))):
        data = [squad_with_impossible(title) for title in titles]
        write(folder / f"{split}-v2.0.json", json.dumps({"version": "v2.0", "data": data}))


def wmt10(folder: Path) -> None:
    for language in ("fr", "cs"):
        line_aligned(f"{{split}}.{language}-en.{{column}}", language, "en")(folder)


# The writer of raw files for each recipe of generation.
RAW: dict[str, Callable[[Path], None]] = {
    "squad_qg": squad,
    "e2e": e2e,
    "gigaword": gigaword,
    "iwslt14": iwslt14,
    "multi30k": multi30k,
    "cnn_dailymail": cnn_dailymail,
    "xsum": xsum,
    "coqa": coqa,
    "persona_chat": persona_chat,
    "webnlg": webnlg,
    "wikilingua": line_aligned("es_en/{split}.{column}", "src", "tgt", valid="val"),
    "wmt10": wmt10,
    "xgiga": line_aligned("{split}.{column}.fr", "x", "y", valid="dev"),
    "xqg": chinese,
}

# The same for understanding.
UNDERSTANDING: dict[str, Callable[[Path], None]] = {"glue": glue, "squad": squad_reading}
