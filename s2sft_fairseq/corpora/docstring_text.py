"""Split a docstring into its one-line summary and the readable text below it.

Docstrings mix prose with reStructuredText, numpydoc or Google sections, doctests and code. The prose and the
descriptions of parameters are kept for the summarizer; markup, code and lists of references are removed.
"""

import re
from dataclasses import dataclass

# Sections whose content is not prose about the object.
_DROPPED_SECTIONS = {
    "example", "examples", "usage", "usage example", "usage examples", "example usage", "sample usage", "doctest",
    "doctests", "demo", "code", "methods", "see also", "reference", "references", "citation", "citations", "license",
    "copyright", "author", "authors", "todo", "contents", "table of contents", "further reading", "external links",
}  # fmt: skip
# Sections that list items, each a name with its description: their headings, and the heading that replaces them.
_ITEM_SECTIONS = {
    name: heading
    for heading, names in {
        "Parameters": "parameters|parameter|params|args|arguments|arg|inputs|input|other parameters",
        "Keyword arguments": "keyword args|keyword arguments|kwargs|keyword parameters",
        "Attributes": "attributes|attribute",
        "Returns": "returns|return|outputs|output",
        "Yields": "yields|yield",
        "Raises": "raises|raise",
        "Warns": "warns",
    }.items()
    for name in names.split("|")
}
# Sections of prose with headings such as "Note:" in Google style; numpydoc underlines all its headings.
_PROSE_SECTIONS = {"note", "notes", "warning", "warnings", "shape", "explanation", "description"}
# Headings without information, which are dropped: their text continues the text before.
_SILENT_SECTIONS = {"explanation", "description", "extended summary", "overview", "details"}
_KEPT_DIRECTIVES = {"note", "warning", "warn", "tip", "hint", "important", "caution", "attention", "danger"}

_UNDERLINE = re.compile(r"([=\-~^\"*+#])\1{2,}")
_TABLE_ROW = re.compile(r"[=+\-|][=+\-| ]{4,}|\|.*\||[=-]{2,}( +[=-]{2,})+")
_DIRECTIVE = re.compile(r"\.\.\s+(?:\|[^|]*\|\s+)?([\w:+.-]+?)::(?:\s+(.*))?")
_SIGNATURE = re.compile(r"(?:[\w.]+\s*=\s*)?[\w.]+\s?\(.*\)(?:\s*->\s*.*)?\s*:?", re.DOTALL)
_FIELD = re.compile(r"[:@](param|parameter|arg|keyword|raises?|returns?|rtype|type|ivar|cvar|var)\b([^:]*):\s*")
_BULLET = re.compile(r"(?:[-*+•]|\(?\d{1,2}[.)]|#\.)\s+")
_NUMPYDOC_ITEM = re.compile(r"(\*{0,2}[\w.]+(?:, ?\*{0,2}[\w.]+)*)\s:(?:\s+(.*))?")
_GOOGLE_ITEM = re.compile(r"[*`'\"]*\w[\w.]*[`'\"]*(?: ?\(.*?\))?(?: -{1,2} |: )")
_STATEMENT = re.compile(
    r"import \w|from [\w.]+ import |def \w+\(|class \w+.*:$|return\b.*[\w)\]]$|(?:for .* in|if|while|with|except)\b.*:$"
    r"|else:|try:|print\(|assert |@\w|[\w.\[\], ]+ [-+*/]?= \S|[\w.]+\(.*\)$|\$ |In \[\d|#|%"
)
_LEGAL = re.compile(r"copyright|\(c\)|all rights reserved|licen[cs]ed? under|warranty", re.IGNORECASE)
_ABBREVIATIONS = {
    "e.g", "i.e", "cf", "vs", "eq", "eqs", "fig", "ref", "refs", "sec", "no", "etc", "resp", "approx", "dr", "prof",
    "al", "st", "ch", "pp", "vol", "ed", "a.k.a", "w.r.t", "n.b",
}  # fmt: skip


@dataclass
class _Line:
    """A line without its indentation; for a heading, `section` is the name of its section."""

    text: str
    indent: int = 0
    section: str = ""


def split_docstring(docstring: str) -> tuple[str, str]:
    """Return the summary, which is the first sentence, and the text after it; either may be "".

    Args:
        docstring: a docstring without indentation, as `ast.get_docstring` returns it.
    """
    # Collapse runs of spaces: no pattern below needs them, and many take quadratic time for long runs.
    lines = [
        _Line(" ".join(line.split()), len(line) - len(line.lstrip())) for line in docstring.expandtabs().splitlines()
    ]
    paragraphs = [line for line in _paragraphs(_without_blocks(lines)) if not _LEGAL.search(line.text)]
    while paragraphs and _SIGNATURE.fullmatch(paragraphs[0].text):
        del paragraphs[0]
    if not paragraphs:
        return "", ""
    summary, rest = _first_sentence(clean_inline(paragraphs[0].text))
    body = [_Line(rest), *(_Line(clean_inline(line.text), section=line.section) for line in paragraphs[1:])]
    return summary, _join([line for line in body if any(map(str.isalnum, line.text))])


def clean_inline(text: str) -> str:
    """Return one paragraph without inline markup: roles, literals, emphasis, links, footnotes, TeX commands."""
    text = re.sub(r":[a-zA-Z][\w:+.-]*:`+([^`]*)`+", _role, text)
    text = re.sub(r"``(.+?)``", r"\1", text)
    text = re.sub(r"`([^`<]+?)\s*<[^`>]*>`_{0,2}", r"\1", text)
    text = re.sub(r"`([^`]*)`_{0,2}", r"\1", text)
    text = re.sub(r"`([^`']*)'", r"'\1'", text).replace("`", "")
    text = re.sub(r"\s*\[#?[\w.-]*\]_", "", text)  # footnotes and citations
    text = re.sub(r"(?<![\w*])(\*{1,2})(?=[^\s*])([^*]*[^*\s])\1(?![\w*])", r"\2", text)
    text = re.sub(r"<?\b(?:https?|ftp)://[^\s>]+>?", "", text)
    text = re.sub(r"%\(\w+\)s|\$\{\w+\}", "", text)  # templates that are filled in at run time
    text = re.sub(r"\\d?frac\s*\{([^{}]*)\}\s*\{([^{}]*)\}", r"\1/\2", text)
    text = re.sub(r"\\(?:text\w*|math\w+|operatorname)\s*\{([^{}]*)\}", r"\1", text)
    text = re.sub(r"\\(?:(?:text\w*|math\w+|operatorname|left|right|big|quad)(?![a-zA-Z])|[,;! ])", "", text)
    if re.search(r"\\[a-zA-Z]|\$[^$]+\$|[_^]\{", text):
        text = re.sub(r"[{}$]", "", text)
    text = re.sub(r"\s*::(?=\s|$)", ":", text.replace("\\", ""))
    text = re.sub(r"(?<!\w)(?:\(\s*\)|\[\s*\])", "", text)
    return re.sub(r"\s+([.,;])(?=\s|$)", r"\1", " ".join(text.split()))


def _role(match: re.Match[str]) -> str:
    if title := re.match(r"(.+?)\s*<.*>$", match[1], re.DOTALL):
        return title[1]
    return match[1].rpartition(".")[2] if match[1].startswith("~") else match[1].removeprefix("!")


def _without_blocks(lines: list[_Line]) -> list[_Line]:
    """Drop doctests, code, tables, most directives and `_DROPPED_SECTIONS`; mark the headings of other sections."""
    kept: list[_Line] = []
    at = 0
    while at < len(lines):
        line = lines[at]
        text, name = line.text, line.text.rstrip(":").lower()
        underlined = _is_underlined(lines, at)
        at += 1
        if text.startswith("```"):
            while at < len(lines) and not lines[at].text.startswith("```"):
                at += 1
            at += 1
        elif text.startswith(">>>"):
            while at < len(lines) and lines[at].text:
                at += 1
        elif (directive := _DIRECTIVE.fullmatch(text)) and directive[1].lower() in _KEPT_DIRECTIVES:
            kept += [_Line(""), _Line(directive[2] or "", line.indent)]
        elif text.startswith(".. ") or text == "..":
            at = _block_end(lines, at, line.indent)
        elif underlined and name in _DROPPED_SECTIONS:
            at += 1
            while at < len(lines) and not _is_underlined(lines, at):
                at += 1
        elif underlined:
            at += 1
            kept.append(_Line(text, line.indent, section=name))
        elif name in _DROPPED_SECTIONS and (text.endswith(":") or text.istitle()):
            at = _block_end(lines, at, line.indent)
        elif text.endswith(":") and (name in _ITEM_SECTIONS or name in _PROSE_SECTIONS):
            kept.append(_Line(text, line.indent, section=name))
        elif text.endswith("::"):
            kept.append(_Line(text[:-1] if text != "::" else "", line.indent))
            at = _block_end(lines, at, line.indent)
        elif not _UNDERLINE.fullmatch(text) and not _TABLE_ROW.fullmatch(text):
            kept.append(line)
    return kept


def _is_underlined(lines: list[_Line], at: int) -> bool:
    return (
        at + 1 < len(lines) and bool(re.match(r"\w", lines[at].text)) and bool(_UNDERLINE.fullmatch(lines[at + 1].text))
    )


def _block_end(lines: list[_Line], start: int, indent: int) -> int:
    """Return the index of the first line from `start` on that is neither blank nor indented deeper than `indent`."""
    while start < len(lines) and (not lines[start].text or lines[start].indent > indent):
        start += 1
    return start


def _paragraphs(lines: list[_Line]) -> list[_Line]:
    """Join the lines of each paragraph, list item and parameter; drop code that is not marked as code."""
    paragraphs: list[list[str]] = []
    sections: dict[int, str] = {}
    indent, fresh, items = 0, True, ""
    for number, line in enumerate(lines):
        if not line.text:
            fresh = True
            continue
        if line.section:
            items = _ITEM_SECTIONS.get(line.section, "")
            if paragraphs and line.section not in _SILENT_SECTIONS:
                sections[len(paragraphs)] = line.section
                paragraphs.append([(items or line.text.rstrip(":").capitalize()) + ":"])
            fresh = True
            continue
        deeper_next = number + 1 < len(lines) and lines[number + 1].indent > line.indent
        text, starts_item = _item(line.text, items, deeper_next, fresh or line.indent <= indent)
        if fresh or starts_item or (line.indent < indent and len(paragraphs) > 1):
            paragraphs.append([])
            indent = line.indent
        paragraphs[-1].append(text)
        fresh = False
    return [
        _Line(" ".join(block), section=sections.get(number, ""))
        for number, block in enumerate(paragraphs)
        if not all(map(_STATEMENT.match, block))
    ]


def _item(text: str, items: str, deeper_next: bool, may_start: bool) -> tuple[str, bool]:
    """Rewrite a line that starts an item as "name (type): description", without its bullet.

    Args:
        text: the line.
        items: the heading of the section if it lists items, else "".
        deeper_next: whether the next line is indented deeper than this one.
        may_start: whether an item may start here, given the indentation and the line before.

    Returns:
        The line, and whether it starts an item.
    """
    if field := _FIELD.match(text):
        name = (field[2].split() or [""])[-1]
        name = {"rtype": "Type returned", "type": f"Type of {name}"}.get(field[1], name or "Returns")
        return f"{'Raises ' if field[1].startswith('raise') else ''}{name}: {text[field.end() :]}", True
    if (bullet := _BULLET.match(text)) and (may_start or not text[0].isdigit()):
        return text[bullet.end() :], True
    if items and may_start and (item := _NUMPYDOC_ITEM.fullmatch(text)):
        if items in ("Raises", "Warns"):
            return f"{item[1]}: {item[2] or ''}", True
        kind = f" ({item[2].rstrip('.')})" if item[2] else ""
        return item[1] + kind + (":" if deeper_next else "."), True
    if items and deeper_next and may_start and ": " not in text:
        return text.rstrip(".:") + ":", True
    return text, may_start and bool(_GOOGLE_ITEM.match(text))


def _first_sentence(text: str) -> tuple[str, str]:
    """Split after the first sentence; stops after abbreviations and initials do not end it."""
    for stop in re.finditer(r"[.!?][)\"']*\s+(?=[A-Z\"'(\[<*])", text):
        before = text[: stop.start()].rpartition(" ")[2].lower().strip("([")
        if before not in _ABBREVIATIONS and len(before) > 1:
            return text[: stop.end()].strip(), text[stop.end() :].strip()
    return text, ""


def _join(paragraphs: list[_Line]) -> str:
    """Join paragraphs into one text; end each with a stop unless its sentence continues, and drop empty sections."""
    texts = []
    for line, following in zip(paragraphs, [*paragraphs[1:], _Line("", section="end")], strict=False):
        if line.section and following.section:
            continue
        text = line.text
        if text.endswith(":") and following.section:  # it announced code, which was dropped
            text = text[:-1]
        texts.append(text if text[-1] in ".:;!?," or following.text.startswith("where ") else text + ".")
    return " ".join(texts)
