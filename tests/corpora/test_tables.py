"""Tables of text: delimiters, quotation marks, headers, encodings, and rows with errors."""

import csv
import gzip
import io
import time

import pytest

from s2sft_fairseq.corpora import tables
from s2sft_fairseq.corpora.pairs import USUAL, Fields, read_pairs, write_pairs
from s2sft_fairseq.corpora.reading import Malformed
from s2sft_fairseq.errors import UserError

PAIRS = [("a b", "A"), ('she said "no", twice', "two\nlines"), ("tab\there", '"whole"'), ("x; y", 'half "quoted')]
ARTICLES = [(f"article number {number} of many", f"headline {number} of it") for number in range(6)]


def written(rows, **how):
    text = io.StringIO()
    csv.writer(text, lineterminator="\n", **how).writerows(rows)
    return text.getvalue()


def read(path, content, fields=USUAL):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    malformed = Malformed()
    found = [(*example.source, *example.references) for example in read_pairs([path], fields, malformed)]
    return found, [line.removeprefix(str(path)) for line in malformed.lines()]


@pytest.mark.parametrize("quoting", [csv.QUOTE_MINIMAL, csv.QUOTE_ALL])
@pytest.mark.parametrize(("ending", "delimiter"), [("csv", ","), ("csv", ";"), ("csv", "\t"), ("tsv", "\t")])
def test_what_the_csv_module_writes_is_read(tmp_path, ending, delimiter, quoting):
    content = written(PAIRS, delimiter=delimiter, quoting=quoting)
    assert read(tmp_path / f"a.{ending}", content) == (PAIRS, [])
    assert read(tmp_path / f"a.{ending}.gz", gzip.compress(content.encode())) == (PAIRS, [])


@pytest.mark.parametrize("pair", ['"to be"\tsaid he', '"half\tb', 'a\t"half', '"a" b\t"c"', 'a "b" c\td', "'a'\tb"])
def test_quotation_marks_of_a_text_between_tabs(tmp_path, pair):
    """They belong to the text, also if a later line has another one."""
    rows = [tuple(pair.split("\t")), ("c", "d"), ('e"', "f")]
    assert read(tmp_path / "a.tsv", "".join("\t".join(row) + "\n" for row in rows)) == (rows, [])


@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
@pytest.mark.parametrize("bom", [b"", b"\xef\xbb\xbf"])
def test_byte_order_mark_and_line_ends(tmp_path, bom, line_end):
    for ending, delimiter in (("csv", ","), ("tsv", "\t")):
        content = "".join(f"{delimiter.join(row)}{line_end}" for row in ARTICLES)
        assert read(tmp_path / f"a.{ending}", bom + content.encode()) == (ARTICLES, [])
    record = b'{"src": "a", "tgt": "b"}'
    assert read(tmp_path / "a.jsonl", bom + record) == ([("a", "b")], [])


@pytest.mark.parametrize(
    ("header", "columns", "fields"),
    [
        ("article,headline", (0, 1), USUAL),
        ("Article,Headline", (0, 1), USUAL),
        ("src,tgt", (0, 1), USUAL),
        ("tgt,src", (1, 0), USUAL),
        ("my_text,my_title", (0, 1), USUAL),
        ("Text,Zusammenfassung", (0, 1), USUAL),
        ("Article Text,Headline", (0, 1), USUAL),
        (",article,headline", (1, 2), USUAL),
        ("id,tgt,src", (2, 1), USUAL),
        ("id,highlights,article", (2, 1), Fields(("article",), "highlights")),
    ],
)
def test_headers(tmp_path, header, columns, fields):
    """The row with the names is no pair; names decide where they are known, else the order."""
    width = header.count(",") + 1
    rows = [[f"cell {place} of row {number}" for place in range(width)] for number in range(6)]
    expected = [(row[columns[0]], row[columns[1]]) for row in rows]
    for ending, delimiter in (("csv", ","), ("tsv", "\t")):
        content = written([header.split(","), *rows], delimiter=delimiter)
        assert read(tmp_path / f"a.{ending}", content, fields) == (expected, [])


def test_commas_in_the_texts_of_a_table_with_semicolons(tmp_path):
    rows = [("one, two", "three"), *ARTICLES]
    assert read(tmp_path / "a.csv", "".join(f"{source};{target}\n" for source, target in rows)) == (rows, [])
    rows = [(f"one, {number}", "three") for number in range(6)]
    with pytest.raises(UserError, match=r"a\.csv: cells may be between ',' or ';': put cells in quotation marks"):
        read(tmp_path / "a.csv", "".join(f"{source};{target}\n" for source, target in rows))
    quoted = "".join(f'"{source}";"{target}"\n' for source, target in rows)
    assert read(tmp_path / "a.csv", quoted) == (rows, [])


def test_several_columns_are_the_fields_of_a_source(tmp_path):
    content = "answer,question,passage\na,q,p\n"
    assert read(tmp_path / "a.csv", content, Fields(("passage", "question"), "answer"))[0] == [("p", "q", "a")]


@pytest.mark.parametrize("first", ["hello,bonjour", "Go.,Va !", "a b,c", "hello,hello", "one,two"])
def test_a_first_pair_is_no_header(tmp_path, first):
    rows = [tuple(first.split(",")), ("run", "cours"), *ARTICLES]
    assert read(tmp_path / "a.csv", written(rows)) == (rows, [])
    assert read(tmp_path / "b.csv", f"{first}\n") == ([rows[0]], [])


@pytest.mark.parametrize(
    ("content", "fields", "problem"),
    [
        ("id,article,headline\n1,a,b\n", USUAL, "must name the columns src, tgt, but has id, article, headline"),
        ("article,headline\na b,c d\n", Fields(("text",), "title"), "must name the columns text, title, but has"),
        ("Titel,Inhalt\na b,c d\n", Fields(("inhalt",), "titel"), "must name the columns inhalt, titel, but has Titel"),
        ("src,tgt\ra,b\r", USUAL, "holds carriage returns"),
        ("src,title\na,b\n", USUAL, "must name the columns src, tgt, but has src, title"),
        ("src,tgt,src\na,b,c\n", USUAL, "has several columns src"),
        ("a,b\n", Fields(("q", "p"), "a"), "must name the columns q, p, a, but has a, b"),
    ],
)  # fmt: skip
def test_columns_that_are_missing(tmp_path, content, fields, problem):
    with pytest.raises(UserError) as error:
        read(tmp_path / "a.csv", content, fields)
    assert f"a.csv:1: {problem}" in str(error.value)


@pytest.mark.parametrize(
    ("content", "problems"),
    [
        ("a,b,c\nd,e\n", [":1: must have two columns, source and target, but has 3: 'a', 'b', 'c'"]),
        ("a\nd,e\n", [":1: must have two columns, source and target, but has 1"]),
        (
            "a,b\rc,d\nd,e\n",
            [":1: must have two columns, source and target, but holds carriage returns: lines must end in line feeds"],
        ),
        ("src,tgt,id\na,b\nd,e,1\n", [":2: must have 3 columns, as the header, but has 2: 'a', 'b'"]),
        ('a,"b" c\nd,e\n', [":1: has text after the quotation mark that closes a cell"]),
        ('a,"b\nd,e\n', [":1: has a quotation mark that opens a cell, and none that closes it"]),
        ("a,b\0\nd,e\n", [":1: holds a NUL character (is the file UTF-16?)"]),
        (b"a,\xff\nd,e\n", [":1: is not valid UTF-8"]),
    ],
)
def test_rows_with_errors(tmp_path, content, problems):
    """They are named, and the row after them is read."""
    assert read(tmp_path / "a.csv", content) == ([("d", "e")], problems)


def test_a_cell_of_too_many_lines(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "MOST_LINES", 3)
    found, problems = read(tmp_path / "a.csv", 'a,"b\nc\nd\ne\nf"\n')
    assert (found, len(problems)) == ([], 5)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be"])
@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.jsonl"])
def test_utf_16(tmp_path, name, encoding):
    (tmp_path / name).write_bytes("\ufeffa,b\n".encode(encoding))
    with pytest.raises(UserError, match=rf"{name} must be UTF-8, but begins as UTF-16 does"):
        list(read_pairs([tmp_path / name], USUAL, Malformed()))


def test_nul_in_json_and_in_aligned_files(tmp_path):
    assert read(tmp_path / "a.jsonl", '{"src": "a", "tgt": "b\\u0000"}')[1] == [
        ":1: holds a NUL character (is the file UTF-16?)"
    ]
    (tmp_path / "a.src").write_text("a\0\n")
    (tmp_path / "a.tgt").write_text("b\n")
    malformed = Malformed()
    assert list(read_pairs([tmp_path / "a.src", tmp_path / "a.tgt"], USUAL, malformed)) == []
    assert malformed.records.total() == 1


def test_the_header_is_told_once(tmp_path, caplog):
    (tmp_path / "a.csv").write_text(written([("article", "headline"), *ARTICLES]))
    stats = write_pairs({"train": [tmp_path / "a.csv"]}, tmp_path / "made")
    assert stats["lines"] == {"train": 5, "valid": 1, "dev": 1}
    assert [record.getMessage() for record in caplog.records] == [
        f"{tmp_path}/a.csv: the first row is a header: the source is article, the target headline"
    ]


def test_an_empty_table(tmp_path):
    assert read(tmp_path / "a.csv", "") == ([], [])


@pytest.mark.parametrize("line", ['"a""b,c""', 'a,"""b', '"a', 'a,"b""', '"a\t"b', '""a"",', '"",""'])
def test_quotation_marks_take_linear_time(tmp_path, line):
    """Also where each line opens a cell that no line closes."""
    content = "a,b\n" + f"{line}\n" * 20_000
    for name in ("a.csv", "a.tsv"):
        start = time.process_time()
        read(tmp_path / name, content)
        assert time.process_time() - start < 5
