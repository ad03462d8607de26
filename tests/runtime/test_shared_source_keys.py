"""Models are told the beam for as long as a search takes, however it ends."""

from types import SimpleNamespace

import pytest

from s2sft_fairseq.runtime.shared_source_keys import _with_beam_size


@pytest.mark.parametrize("fails", [False, True])
def test_the_beam_is_known_during_the_search(fails):
    beams = []
    model = SimpleNamespace(share_source_keys=beams.append)
    generator = SimpleNamespace(model=SimpleNamespace(models=[model, SimpleNamespace()]), beam_size=4)

    def generate(self, sample):
        assert beams == [4]
        if fails:
            raise ValueError
        return sample

    search = _with_beam_size(generate)
    if fails:
        with pytest.raises(ValueError):
            search(generator, 7)
    else:
        assert search(generator, 7) == 7
    assert beams == [4, 1]
