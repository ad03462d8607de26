"""ERNIE-GEN as Baidu's program saved it: names, transposed matrices, a bare pickle, ids in the vocabulary."""

import json
import pickle
import re

import pytest
import torch
from hugging_face import POSITIONS, SIZES, our_model, our_output, segments_of, texts, their_model, their_output

from s2sft_fairseq.commands.convert import main as convert
from s2sft_fairseq.data.dictionary import PretrainedDictionary
from s2sft_fairseq.errors import UserError

# Hugging Face's names -> Baidu's, written by hand.
PADDLE = [
    (r"^ernie\.embeddings\.word_embeddings", "word_emb"),
    (r"^ernie\.embeddings\.position_embeddings", "pos_emb"),
    (r"^ernie\.embeddings\.token_type_embeddings", "sent_emb"),
    (r"^ernie\.embeddings\.LayerNorm", "ln"),
    (r"^ernie\.encoder\.layer\.(\d)\.attention\.self\.(.)\w+", r"encoder_stack.block.\1.attn.\2"),
    (r"^ernie\.encoder\.layer\.(\d)\.attention\.output\.dense", r"encoder_stack.block.\1.attn.o"),
    (r"^ernie\.encoder\.layer\.(\d)\.attention\.output\.LayerNorm", r"encoder_stack.block.\1.ln1"),
    (r"^ernie\.encoder\.layer\.(\d)\.intermediate\.dense", r"encoder_stack.block.\1.ffn.i"),
    (r"^ernie\.encoder\.layer\.(\d)\.output\.dense", r"encoder_stack.block.\1.ffn.o"),
    (r"^ernie\.encoder\.layer\.(\d)\.output\.LayerNorm", r"encoder_stack.block.\1.ln2"),
    (r"^cls\.predictions\.transform\.dense", "mlm"),
    (r"^cls\.predictions\.transform\.LayerNorm", "mlm_ln"),
    (r"^cls\.predictions\.bias", "mlm_bias"),
]
VOCABULARY = ["[PAD]", "[CLS]", "[SEP]", "[MASK]", "[ATTN]", "[NOISE]", "[UNK]", *(f"w{i}" for i in range(7, 50))]


@pytest.fixture(scope="module")
def theirs():
    return their_model("ernie", layer_norm_eps=1e-5)


@pytest.fixture
def source(theirs, tmp_path):
    state = {"StructuredToParameterName@@": {"word_emb.weight": "word_embedding"}}
    for name, value in theirs.state_dict().items():
        if name.startswith("cls.predictions.decoder"):
            continue
        (renamed,) = [re.sub(pattern, new, name) for pattern, new in PADDLE if re.match(pattern, name)]
        is_matrix = value.ndim == 2 and "_emb" not in renamed
        state[renamed] = (value.t() if is_matrix else value).contiguous().numpy()
    state["pooler.weight"] = torch.zeros(16, 16).numpy()
    folder = tmp_path / "ernie-gen"
    folder.mkdir()
    (folder / "ernie_gen_base.pdparams").write_bytes(pickle.dumps(state, protocol=2))
    config = {**SIZES, "hidden_act": "gelu", "sent_type_vocab_size": 4}
    (folder / "ernie_config.json").write_text(json.dumps(config))
    (folder / "vocab.txt").write_text("".join(f"{token}\t{number}\n" for number, token in enumerate(VOCABULARY)))
    return folder


def test_same_logits(source, theirs, tmp_path, capsys):
    convert([str(source), "--to", str(tmp_path / "out")])
    assert "unused: pooler.weight\n" in capsys.readouterr().out
    tokens, real = texts([POSITIONS, 9], 0)
    segments = segments_of(real, 4)
    expected = their_output(theirs, tokens, real, segments)[real]
    found = our_output(our_model(tmp_path / "out"), tokens, real, segments, logits=True)[real]
    assert expected.std() > 0.1
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=0)


def test_its_segments(source, tmp_path):
    convert([str(source), "--to", str(tmp_path / "out")])
    layout = json.loads((tmp_path / "out" / "config.json").read_text())["layout"]
    assert layout == {"source_segments": "0,1,2", "target_segment": 3}


def test_its_special_tokens(source, tmp_path):
    # A token that the vocabulary has is not added again: recipes name the tokens that they need of any encoder.
    convert([str(source), "--to", str(tmp_path / "out"), "--add-token", "[NOISE]"])
    dictionary = PretrainedDictionary.load(str(tmp_path / "out" / "dict.txt"))
    assert dictionary.symbols == VOCABULARY
    assert (dictionary.index("[ATTN]"), dictionary.index("[NOISE]"), dictionary.mask()) == (4, 5, 3)


class Call:
    """A call as in a malicious pickle."""

    def __reduce__(self):
        return print, ("run",)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (pickle.dumps({"a": Call()}, protocol=2), r"\.pdparams: refused, it holds .*print"),
        (pickle.dumps({"a": torch.zeros(1).numpy()}, protocol=4), r"must be of protocol 2 and hold NumPy arrays\.$"),
        (b"no pickle", r"\.pdparams \(9 bytes\): not a PyTorch checkpoint, or a truncated or damaged one"),
    ],
)
def test_unsafe_and_damaged_pickles(source, tmp_path, capsys, content, message):
    (source / "ernie_gen_base.pdparams").write_bytes(content)
    with pytest.raises(UserError, match=message):
        convert([str(source), "--to", str(tmp_path / "out")])
    assert capsys.readouterr().out == "" and not (tmp_path / "out").exists()
