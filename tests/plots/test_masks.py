"""Pictures of training examples: tables by hand from the papers, what training makes, and the numbers."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from fairseq.data import Dictionary

from s2sft_fairseq.data.dictionary import SpecialSymbols
from s2sft_fairseq.data.fairseq_dictionary import FairseqDictionary
from s2sft_fairseq.data.mixture_dataset import MixtureDataset
from s2sft_fairseq.data.mixture_parts import PairPart, SpanPart
from s2sft_fairseq.models.deltalm import DeltaLMConfig, DeltaLMModel
from s2sft_fairseq.objectives.blocks import Blocks
from s2sft_fairseq.objectives.finetuning import NO_CORRUPTION
from s2sft_fairseq.objectives.objective import OBJECTIVES
from s2sft_fairseq.objectives.packing import collate
from s2sft_fairseq.objectives.pseudo_masked_lm import LANGUAGE_MODELS, BlockwiseMasking
from s2sft_fairseq.objectives.ragged import Draws, Ragged
from s2sft_fairseq.objectives.sequence_form import EncoderDecoderForm
from s2sft_fairseq.objectives.span_corruption import SpanCorruption
from s2sft_fairseq.plots.masks import GREYS, corrupt_text, draw, pack_encoder_decoder, pack_pair, pack_text, write_csv
from s2sft_fairseq.tasks.encoder_pretraining import UnilmPretrainingConfig, UnilmPretrainingTask

PLAIN = {"cut": Blocks(1, 1), "corruption": NO_CORRUPTION}
HALF = BlockwiseMasking(0.5, 0.4, (2, 2))
THANKS = ["Thank", "you", "for", "inviting", "me", "to", "your", "party", "last", "week"]


def seen(text: str) -> list[list[bool]]:
    """Return a matrix drawn with x where the query (row) sees the key (column); spaces do not count."""
    return [[mark == "x" for mark in "".join(row.split())] for row in text.strip().splitlines()]


def test_pseudo_masked_fine_tuning():
    """Figure 1 of s2s-ft, for a source of one word and a target of two."""
    example = pack_pair("pseudo_masked", ["x"], ["y", "z"], **PLAIN)
    assert example.tokens == ("[CLS]", "x", "[SEP]", "y", "z", "[SEP]", "[M]", "[M]", "[M]")
    assert example.labels == ("", "", "", "", "", "", "y", "z", "[SEP]")
    assert example.kinds() == ["source"] * 3 + ["target"] * 3 + ["placeholder"] * 3
    assert example.sections == ("source", "target", "placeholders")
    assert example.sees.tolist() == seen(
        """
        xxx ... ...
        xxx ... ...
        xxx ... ...
        xxx x.. ...
        xxx xx. ...
        xxx xxx ...
        xxx ... x..
        xxx x.. .x.
        xxx xx. ..x
        """
    )


def test_a_span_of_pseudo_masked_fine_tuning():
    """As in UniLMv2, the placeholders of a span see each other."""
    example = pack_pair("pseudo_masked", ["x"], ["y", "z"], spans=[["y", "z"]], **PLAIN)
    assert example.sees[6:].tolist() == seen(
        """
        xxx ... xx.
        xxx ... xx.
        xxx xx. ..x
        """
    )


def test_a_source_that_is_read_from_left_to_right():
    example = pack_pair("pseudo_masked", ["x"], ["y"], causal_source=True, **PLAIN)
    assert example.batch.step.tolist() == [-2, -1, 0, 1, 2, 1, 2]
    assert example.kinds() == ["source"] * 3 + ["target"] * 2 + ["placeholder"] * 2
    assert example.sees.tolist() == seen(
        """
        x.. .. ..
        xx. .. ..
        xxx .. ..
        xxx x. ..
        xxx xx ..
        xxx .. x.
        xxx x. .x
        """
    )


def test_a_causal_target_begins_with_the_separator_of_its_source():
    example = pack_pair("causal", ["x"], ["y"], **PLAIN)
    assert example.tokens == ("[CLS]", "x", "[SEP]", "y")
    assert example.labels == ("", "", "y", "[SEP]")


def test_blocks_continue_after_the_end():
    example = pack_pair("blocks", ["x"], ["y", "z"], cut=Blocks(2, 2, schedule="full"), corruption=NO_CORRUPTION)
    assert example.tokens[6:] == ("[M]",) * 4
    assert example.labels[6:] == ("y", "z", "[SEP]", "[SEP]")
    assert example.sees[6:, 6:].astype(int).tolist() == [[1, 1, 0, 0]] * 2 + [[0, 0, 1, 1]] * 2


def test_blocks_with_a_word_flow():
    """Source, target, a placeholder for each target token, then two blocks of two; the flows do not see each other."""
    cut = Blocks(2, 2, word_weight=0.5, schedule="full")
    example = pack_pair("blocks", ["x"], ["y", "z"], cut=cut, corruption=NO_CORRUPTION)
    assert example.sections == ("source", "target", "word flow", "blocks")
    assert example.tokens == ("[CLS]", "x", "[SEP]", "y", "z", "[SEP]", *("[M]",) * 7)
    assert example.labels == ("",) * 6 + ("y", "z", "[SEP]") + ("y", "z", "[SEP]", "[SEP]")
    assert example.batch.position.tolist() == [0, 1, 2, 3, 4, 5, 3, 4, 5, 3, 4, 5, 6]
    assert example.sees.tolist() == seen(
        """
        xxx ... ... ....
        xxx ... ... ....
        xxx ... ... ....
        xxx x.. ... ....
        xxx xx. ... ....
        xxx xxx ... ....
        xxx ... x.. ....
        xxx x.. .x. ....
        xxx xx. ..x ....
        xxx ... ... xx..
        xxx ... ... xx..
        xxx xx. ... ..xx
        xxx xx. ... ..xx
        """
    )


def test_the_flows_of_ernie_gen():
    """Equations 2 to 4 and Figure 3d, with the spans a, b c and [SEP]: c is predicted from a alone in the span flow."""
    example = pack_pair("infilling", ["x"], ["a", "b", "c"], spans=[["b", "c"]], **PLAIN)
    assert example.sections == ("source", "target", "word flow", "span flow")
    assert example.tokens == ("[CLS]", "x", "[SEP]", "[CLS]", "a", "b", "c", *("[ATTN]",) * 8)
    assert example.labels == ("",) * 7 + ("a", "b", "c", "[SEP]") * 2
    assert example.batch.step.tolist() == [0, 0, 0, 1, 2, 3, 4, 2, 3, 4, 5, 2, 3, 3, 5]
    assert example.sees.tolist() == seen(
        """
        xxx .... .... ....
        xxx .... .... ....
        xxx .... .... ....
        xxx x... .... ....
        xxx xx.. .... ....
        xxx xxx. .... ....
        xxx xxxx .... ....
        xxx x... x... ....
        xxx xx.. .x.. ....
        xxx xxx. ..x. ....
        xxx xxxx ...x ....
        xxx x... .... x...
        xxx xx.. .... .x..
        xxx xx.. .... ..x.
        xxx xxxx .... ...x
        """
    )


def test_the_pre_training_of_unilmv2():
    """Figures 4 and 5: of x1 to x6, step 1 predicts x4 and x5, step 2 predicts x2; as in docs/unilmv2.md."""
    example = pack_text(["x1", "x2", "x3", "[SEP]", "x4", "x5", "x6"], "ae+par", HALF, seed=271)
    context = ("[CLS]", "x1", "[M]", "x3", "[SEP]", "[M]", "[M]", "x6", "[SEP]")
    assert example.sections == ("context", "originals", "placeholders")
    assert example.tokens == (*context, "x2", "x4", "x5", "[P]", "[P]", "[P]")
    assert example.labels == ("", "", "x2", "", "", "x4", "x5", "", "", "", "", "", "x2", "x4", "x5")
    assert example.batch.position.tolist() == [*range(9), 2, 5, 6, 2, 5, 6]
    assert example.batch.segment.tolist() == [0] * 5 + [1] * 4 + [0, 1, 1] * 2
    assert example.batch.step.tolist() == [0] * 9 + [2, 1, 1] * 2
    assert example.kinds() == ["source"] * 9 + ["target"] * 3 + ["placeholder"] * 3
    assert example.sees.tolist() == [[True] * 9 + [False] * 6] * 9 + seen(
        """
        xxxxxxxxx xxx ...
        xxxxxxxxx .xx ...
        xxxxxxxxx .xx ...
        xxxxxxxxx .xx x..
        xxxxxxxxx ... .xx
        xxxxxxxxx ... .xx
        """
    )


def test_one_token_in_each_step():
    """AR in Figure 3: within a block from left to right; nothing is predicted at [M]."""
    example = pack_text(["x1", "x2", "x3", "x4"], "ar", BlockwiseMasking(0.5, 1.0, (2, 2)), seed=1)
    assert sorted(example.batch.step[-2:].tolist()) == [1, 2]
    assert set(example.labels[:6]) == {""}
    assert example.sees[-2:, -4:].tolist() == seen(".. x. \n x. .x")


@pytest.mark.parametrize("name", LANGUAGE_MODELS)
def test_the_task_of_unilmv2_makes_the_same_example(name):
    """The columns are those of `unilm_pretraining` with its defaults, for a text with several masked spans."""
    text = ["a", "b", "c", "d", "e", "f", "g", "h", "[SEP]", "i", "j", "k", "l", "m", "n", "o", "p"]
    names = ("[CLS]", "[SEP]", "[PAD]", "[M]", "[P]", *dict.fromkeys(text))
    special = SpecialSymbols(bos="[CLS]", pad="[PAD]", eos="[SEP]", unk="[PAD]", mask="[M]")
    dictionary = FairseqDictionary([(symbol, 1) for symbol in dict.fromkeys(names)], special)
    task = UnilmPretrainingTask(UnilmPretrainingConfig(language_model=name, placeholder="[P]"), dictionary)
    row = Ragged.of([np.array([dictionary.index(word) for word in text])])
    for seed in range(20):
        batch = pack_text(text, name, BlockwiseMasking(), seed).batch
        expected = collate([task.pack(row, Draws(seed, 0, np.array([0])))])
        for column, found in vars(batch).items():
            assert np.array_equal(found, getattr(expected, column)), (column, seed)


def test_the_spans_of_deltalm():
    """Figure 3a: the target is the spans, each after its sentinel; as in docs/deltalm.md."""
    source, target = corrupt_text(THANKS, SpanCorruption(0.4, 2), seed=2)
    assert " ".join(source) == "Thank you <extra_id_0> me to your party <extra_id_1>"
    assert " ".join(target) == "<extra_id_0> for inviting <extra_id_1> last week"


def test_who_sees_whom_in_an_encoder_decoder():
    """The encoder sees all of itself, the decoder all of the encoder and its own input from left to right."""
    example = pack_encoder_decoder(["a", "b"], ["c", "d"])
    assert example.sections == ("encoder", "decoder")
    assert example.tokens == ("a", "b", "</s>", "</s>", "c", "d")
    assert example.labels == ("", "", "", "c", "d", "</s>")
    assert example.batch.position.tolist() == [0, 1, 2, 0, 1, 2]
    assert example.kinds() == ["source"] * 3 + ["target"] * 3
    assert example.sees.tolist() == seen(
        """
        xxx ...
        xxx ...
        xxx ...
        xxx x..
        xxx xx.
        xxx xxx
        """
    )


def test_the_data_of_deltalm_have_the_same_example():
    """Inputs and labels of a batch, of a text and of a pair."""
    symbols = ["<pad>", "</s>", *(f"<extra_id_{number}>" for number in range(10)), *THANKS]
    ids = np.array([symbols.index(word) for word in THANKS])
    line = np.append(ids, 1)
    text = [ids]
    corruption = SpanCorruption(0.4, 2)
    form = EncoderDecoderForm((), eos=1, pad=0, max_source=20, max_target=20)
    lines = Lines([line])
    spans = SpanPart("text", Lines(text), corruption, range(2, 12), eos=1)
    for part, sides in (
        (spans, corrupt_text(THANKS, corruption, seed=5)),
        (PairPart("pair", lines, lines, form), (THANKS, THANKS)),
    ):
        dataset = MixtureDataset([[part]], None, pad=0, eos=1, vocab_size=len(symbols), seed=5)
        dataset.epoch = 0  # which the draws of a picture have
        batch = dataset.collater([dataset[0]])
        example = pack_encoder_decoder(*sides)
        inputs = torch.cat([batch["net_input"]["src_tokens"], batch["net_input"]["prev_output_tokens"]], dim=1)[0]
        assert tuple(symbols[number] for number in inputs) == example.tokens
        labels = example.labels[-batch["target"].shape[1] :]
        assert tuple(symbols[number] for number in batch["target"][0]) == labels


class Lines(list):
    """Rows of ids, with the sizes that data sets have."""

    @property
    def sizes(self) -> list[int]:
        return [len(row) for row in self]


def test_the_model_of_deltalm_sees_the_same():
    """Its states depend on the inputs that the matrix shows, and on no others."""
    symbols = Dictionary()
    for number in range(10):
        symbols.add_symbol(f"w{number}")
    torch.manual_seed(0)
    sizes = {"encoder_layers": 2, "encoder_embed_dim": 8, "encoder_ffn_embed_dim": 8, "encoder_attention_heads": 2}
    task = SimpleNamespace(source_dictionary=symbols, target_dictionary=symbols)
    model = DeltaLMModel.build_model(DeltaLMConfig(dropout=0.0, max_positions=10, **sizes), task).double().eval()

    @torch.no_grad()
    def states(inputs: torch.Tensor) -> torch.Tensor:
        # (6,) -> (6, H), the encoder and then the decoder
        source, previous = inputs[None, :3], inputs[None, 3:]
        encoded = model.encoder(source, torch.tensor([3]))
        decoded = model.decoder(previous, encoder_out=encoded, features_only=True)[0]
        return torch.cat([encoded["encoder_out"][0][:, 0], decoded[0]])

    inputs = torch.tensor([5, 6, 2, 2, 7, 8])
    changes = []
    for place in range(6):
        other = inputs.clone()
        other[place] = 9
        changes.append((states(other) - states(inputs)).abs().amax(dim=1) > 1e-9)
    assert torch.stack(changes, dim=1).tolist() == pack_encoder_decoder(["a", "b"], ["c", "d"]).sees.tolist()


EXAMPLES = {
    **{
        name: lambda name=name: pack_pair(
            name, ["a", "[SEP]", "b"], ["c", "d", "e"], cut=Blocks(), corruption=NO_CORRUPTION
        )
        for name in OBJECTIVES
    },
    "spans": lambda: pack_pair("infilling", ["a"], ["c", "d"], spans=[["c", "d"]], **PLAIN),
    "one block": lambda: pack_pair("blocks", ["a"], ["c"], cut=Blocks(99, 99), corruption=NO_CORRUPTION),
    **{name: lambda name=name: pack_text(["a", "b", "c"], name, HALF) for name in LANGUAGE_MODELS},
    "deltalm": lambda: pack_encoder_decoder(["[CLS]", "b"], ["c"]),
}


@pytest.mark.parametrize("make", EXAMPLES.values(), ids=EXAMPLES)
def test_every_objective_is_drawn(make, tmp_path):
    example = make()
    draw(example, tmp_path / "masks.svg")
    text = (tmp_path / "masks.svg").read_text(encoding="utf-8")
    assert text.count("<!-- [CLS]") == 2 * example.tokens.count("[CLS]")  # an axis of queries and one of keys
    used = np.unique(example.batch.section()).tolist()
    for number, name in enumerate(example.sections):
        assert (f"<!-- {name} -->" in text) == (number in used), name
    assert "<!-- factorization step -->" in text
    assert set(example.kinds()) <= set(GREYS)


def test_the_numbers(tmp_path):
    write_csv(pack_encoder_decoder(["a"], ["b"]), tmp_path / "masks.csv")
    assert (tmp_path / "masks.csv").read_text(encoding="utf-8").splitlines() == [
        "token,position,segment,step,group,label,section,a,</s>,</s>,b",
        "a,0,0,0,0,,encoder,1,1,0,0",
        "</s>,1,0,0,0,,encoder,1,1,0,0",
        "</s>,0,0,1,0,b,decoder,1,1,1,0",
        "b,1,0,2,0,</s>,decoder,1,1,1,1",
    ]
