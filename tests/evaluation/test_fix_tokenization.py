"""BERT's words as words of the Penn Treebank, derived by hand from the rules of s2s-ft's evaluation scripts."""

import pytest

from s2sft_fairseq.evaluation.fix_tokenization import STYLES, fix_tokenization


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('he didn \' t say " yes " .', "he did n't say `` yes '' ."),
        ("he ' ll see ' it ' today", "he 'll see ` it ' today"),
        ("the boys ' s dog ' d bark", "the boys 's dog 'd bark"),
        ("$ 3 , 000 , 000 and 3 . 14", "$ 3,000,000 and 3.14"),
        ("wait . . . now", "wait ... now"),
        ("a well - known man - and - ( so )", "a well-known man-and - -LRB- so -RRB-"),
        ("- one -", "- one -"),
        ("yes - - no", "yes -- no"),
        ("[ x ] { y }", "-LSB- x -RSB- -LCB- y -RCB-"),
        # The original repeats what follows the second letter, and does not recognize a third one.
        ("the U . N . today", "the U.N. . today"),
        ("the U . S . A . today", "the U.S. . A . today"),
        ("the U . N . x Y . today", "the U.N.xY . x Y . today"),
        ("", ""),
    ],
)
def test_rules(text, expected):
    assert fix_tokenization(text, STYLES["cased"]) == expected


@pytest.mark.parametrize(
    ("style", "expected"),
    [
        ("cased", "-LRB- a & b -RRB- [UNK] `` c-d ''"),
        ("lower", "-lrb- a &amp; b -rrb- UNK `` c-d ''"),
        ("contractions", '( a & b ) [UNK] " c - d "'),
    ],
)
def test_styles(style, expected):
    assert fix_tokenization('( a & b ) [UNK] " c - d "', STYLES[style]) == expected


def test_contractions_are_joined_in_every_style():
    for style in STYLES.values():
        assert fix_tokenization("don ' t , 1 , 000 . . .", style) == "do n't , 1,000 ..."
