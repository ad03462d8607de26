"""Files of labels and of classes, and their errors."""

import numpy as np
import pytest

from s2sft_fairseq.data.labels import checked_classes, read_class_labels, read_classes, read_number_labels
from s2sft_fairseq.errors import UserError


def write(path, *lines):
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def test_classes_and_numbers(tmp_path):
    assert read_classes(write(tmp_path / "labels.txt", "no", "yes ")) == ("no", "yes")
    labels = read_class_labels(write(tmp_path / "a.label", "yes", "no", "yes"), ("no", "yes"), 3)
    assert labels.dtype == np.int64
    assert labels.tolist() == [1, 0, 1]
    numbers = read_number_labels(write(tmp_path / "b.label", "2.5", "-1", "1e1"), 3)
    assert numbers.dtype == np.float64
    assert numbers.tolist() == [2.5, -1.0, 10.0]


@pytest.mark.parametrize("names", [["a"], ["a", "a"], ["a", ""]])
def test_no_classes(names):
    with pytest.raises(UserError, match=r"^--classes must name at least two different classes, but has 'a'"):
        checked_classes(names, "--classes")


def test_mistakes(tmp_path):
    path = write(tmp_path / "a.label", "yes", "maybe", "no", "perhaps")
    with pytest.raises(UserError) as raised:
        read_class_labels(path, ("no", "yes"), 4)
    assert str(raised.value) == f"{path}: 2 line(s) are none of the classes no, yes: line 2, 4"
    with pytest.raises(UserError, match=r"must have a label for each of the 5 texts, but has 4 lines$"):
        read_class_labels(path, ("no", "yes"), 5)
    with pytest.raises(UserError) as raised:
        read_number_labels(write(path, "1", "one", "nan"), 3)
    assert str(raised.value) == f"{path}: 2 line(s) are no numbers: line 2, 3"
    with pytest.raises(UserError) as raised:
        read_number_labels(write(path, "1", "1e39", "-1e300"), 3)
    assert str(raised.value) == f"{path}: 2 line(s) are outside of -3.40282e+38 to 3.40282e+38: line 2, 3"
