"""XML that grows when it is read, or that reads other files."""

import pytest

from s2sft_fairseq.corpora.data_to_text import read_webnlg_file
from s2sft_fairseq.corpora.reading import Malformed

XML = {
    "a billion laughs": '<!DOCTYPE a [<!ENTITY b "x">'
    + "".join(f'<!ENTITY c{n} "{(f"&c{n - 1};" if n else "&b;") * 10}">' for n in range(12))
    + "]><a>&c11;</a>",
    "a file of others": '<!DOCTYPE a [<!ENTITY b SYSTEM "file:///etc/hostname">]><a>&b;</a>',
    "no encoding": '<?xml version="1.0" encoding="none"?><a/>',
    "several bytes": '<?xml version="1.0" encoding="utf-32"?><a/>',
}


@pytest.mark.parametrize("name", XML)
def test_xml(tmp_path, name):
    (tmp_path / "a.xml").write_text(XML[name])
    malformed = Malformed()
    assert list(read_webnlg_file(tmp_path / "a.xml", "en", malformed)) == []
    assert len(malformed.lines()) == 1 and "is no well-formed XML: " in malformed.lines()[0]
