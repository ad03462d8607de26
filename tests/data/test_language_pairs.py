"""Names of pairs and languages, by hand; the dictionary of all is tested with the tasks."""

import pytest

from s2sft_fairseq.data.language_pairs import LanguagePair, parse_languages, parse_pairs
from s2sft_fairseq.errors import UserError


def test_pairs_and_languages_by_hand():
    assert parse_pairs("en-de,src-tgt:fr") == [LanguagePair("en", "de", "de"), LanguagePair("src", "tgt", "fr")]
    assert parse_pairs(None) == [] and parse_languages(None) == []
    with pytest.raises(UserError) as error:
        parse_pairs("en,de-en,de-en:de,a-b-c")
    assert error.value.problems == [
        "--lang-pairs must be pairs such as en-de or src-tgt:en, separated by commas, but has 'en'",
        "--lang-pairs has de-en twice",
        "--lang-pairs must be pairs such as en-de or src-tgt:en, separated by commas, but has 'a-b-c'",
    ]
    with pytest.raises(UserError, match="must be different names, separated by commas, but is 'de,de'"):
        parse_languages("de,de")
