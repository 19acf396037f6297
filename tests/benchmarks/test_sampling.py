"""The benchmark of the sampling operators: both of its programs compute the same."""

import pytest
import sampling

CASES = {
    "attention": lambda: sampling.attention(20),
    "window": lambda: sampling.stage(2, 6, 32),
    "image": lambda: sampling.warp(1, (6, 7), 9),
    "volume": lambda: sampling.warp(1, (4, 6, 7), 2),
}


@pytest.mark.spread(2)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("wrap", sampling.PASSES.values(), ids=["forward", "both"])
def test_programs_agree(name, wrap):
    found = sampling.compare(CASES[name](), wrap, 1)
    assert found["oxijax"]["ms"] > 0
    ratio = found["oxijax"]["ms"] / found["plain"]["ms"]
    assert set(found["time_ratio"].values()) == {ratio}  # of one round


def test_other_results_are_refused():
    case = sampling.stage(1, 6, 32)
    wrong = sampling.Case(lambda *arrays: 1.1 * case.ours(*arrays), case.plain, case.arrays)
    with pytest.raises(SystemExit, match=r"the programs differ by 0\.1"):
        sampling.compare(wrong, sampling.forward, 1)
