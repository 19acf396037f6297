"""The comparison with kernels of others, as far as it needs neither a GPU nor those kernels."""

import csv

import counters
import pytest
from gpu_suite.peers.launches import one_kernel
from gpu_suite.peers.sizes import threads_of_dcnv4, window
from gpu_suite.report_peers import peers
from gpu_suite.sampling_layers import SamplingLayer

WINDOWS = SamplingLayer("windows", 8, ((14, 14),), 16, 16)


def test_one_kernel_of_a_module():
    texts = ".version 8.0\n.visible .entry one_ab(\n) { a }\n.visible .entry two_ab(\n) { b }\n"
    assert one_kernel(texts, "two") == ".version 8.0\n.visible .entry two_ab(\n) { b }\n"
    for pattern in ("ab", "three"):
        with pytest.raises(ValueError, match=f"one kernel must have a name like {pattern}"):
            one_kernel(texts, pattern)


@pytest.mark.parametrize("back", [False, True])
def test_blocks_of_dcnv4_do_not_go_across_images(back):
    _, height, width, groups, channels = window(WINDOWS)
    of_thread, threads = threads_of_dcnv4(WINDOWS, back=back)
    pixels, rest = divmod(threads * of_thread, groups * channels)
    assert not rest
    assert height * width % pixels == 0
    assert pixels == (1 if back else 14)


def test_the_table():
    times = {
        name: {"median_us": us} for name, us in (("forward", 10.0), ("forward_backward", 40.0))
    }
    theirs = {"forward": {"median_us": 20.0}, "both": {"median_us": 100.0}}
    results = {
        "times": {"encoder": {"float32": times}},
        "peers": {"one": {"encoder": {"float32": theirs}}, "two": {"not_measured": "why"}},
    }
    lines = list(peers({"sections": {"times-peers": {"results": results}}}))
    assert "| encoder | float32 | one | 10.0 | 20.0 | 2.00 |" in lines
    assert "| encoder | float32 | one | 40.0 | 100.0 | 2.50 |" in lines
    assert not any("two" in line for line in lines)
    assert not list(peers({"sections": {}}))


def test_counters_are_read(tmp_path):
    layers = [layer for layer, _, operations in counters.CALLS for _ in operations]
    file = tmp_path / "counters.csv"
    with file.open("w", newline="") as out:
        writer = csv.writer(out)
        writer.writerow(["Kernel Name", *counters.METRICS.values()])
        writer.writerow(["", *["unit"] * len(counters.METRICS)])
        for number in range(len(layers)):
            writer.writerow([f"kernel{number}", "1,234", *["5.5"] * (len(counters.METRICS) - 1)])
    found = counters.read(file)
    assert [row["layer"] for row in found] == layers
    assert (found[3]["kernel"], found[3]["ns"], found[3]["cycles"]) == ("kernel3", 1234, 5.5)
    file.write_text("".join(file.read_text().splitlines(keepends=True)[:-1]))
    with pytest.raises(ValueError, match="shorter"):
        counters.read(file)
