"""A kernel without a barrier, wait or commit is caught by the emulator, whatever it computes."""

import pytest
from support.small_calls import CASES, without_synchronisation

from ptx.emulator import InFlightError, RaceError, UninitializedError

pytestmark = pytest.mark.proof


def outcome(call, text: str) -> str:
    try:
        call.run(text)
    except (InFlightError, RaceError, UninitializedError) as error:
        return type(error).__name__
    return "not noticed"


@pytest.mark.parametrize("name", CASES)
def test_lost_synchronisation_is_noticed(name):
    """Wrong numbers would fail the test: the emulator must see what made them."""
    case = CASES[name]
    found = [outcome(case.call, broken.text) for broken in without_synchronisation(case.call.text)]
    assert found.count("not noticed") == case.needless, found
    assert {"InFlightError", "RaceError"} <= set(found)
