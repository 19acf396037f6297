"""The target for a GPU; the name of a text's kernel."""

import pytest

from ptx import TARGETS, UnsupportedError, target_for
from ptx.launch import entry_name


@pytest.mark.parametrize("sm", [75, 80, 86, 87, 88, 89, 90, 100, 103, 110, 120, 121, 200])
def test_target_for(sm):
    """The target of the version itself, else the next one below."""
    below = {87: 86, 88: 86, 103: 100, 110: 100, 121: 120, 200: 120}
    assert target_for(sm) is TARGETS[f"sm_{below.get(sm, sm)}"]


@pytest.mark.parametrize("sm", [0, 61, 70, 74])
def test_too_old(sm):
    with pytest.raises(UnsupportedError, match=rf"sm_{sm} is below sm_75, the lowest"):
        target_for(sm)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (".version 7.8\n.visible .entry copy(\n .param .u64 x\n)\n{ ret; }", "copy"),
        (".entry\n  $copy_2() { ret; }", "$copy_2"),
        (".weak .entry %f() { ret; }", "%f"),
        ("// .entry old()\n.entry new() { ret; } /* as\n.entry old() */", "new"),
        (".func helper() { ret; }\n.entry k() { call helper; ret; }", "k"),
    ],
)
def test_entry_name(text, name):
    assert entry_name(text) == name


@pytest.mark.parametrize(
    ("text", "found"),
    [("", "none"), ("// .entry k()", "none"), (".entry a() {}\n.entry b() {}", "a, b")],
)
def test_not_one_entry(text, found):
    with pytest.raises(ValueError, match=rf"one kernel \(\.entry\) is expected, this has {found}"):
        entry_name(text)
