"""docs/builder.md has every operation of the builder, with its arguments, and no other."""

import dataclasses
import inspect
import re

import pytest
from support.paths import DOCS

from ptx import Kernel, Pointer, Val, Var
from ptx.isa.opcodes import OPCODES

PAGE = (DOCS / "builder.md").read_text()
CLASSES = {"k": Kernel, "p": Pointer, "a": Val, "v": Var}
FIELDS = {
    "k": set(),  # of the instance alone
    "p": {field.name for field in dataclasses.fields(Pointer)},
    "a": {"block", "dtype", "kernel", "register"},
    "v": {*vars(Val)},
}


@pytest.mark.parametrize("letter", CLASSES)
def test_every_operation_is_there_with_its_arguments(letter):
    of, operations = CLASSES[letter], {}
    for name in {n for n in dir(of) if not n.startswith("_")} - FIELDS[letter]:
        member = getattr(of, name)
        arguments = ""
        if callable(member):
            _, *parameters = inspect.signature(member).parameters.values()
            empty = inspect.Parameter.empty
            plain = [parameter.replace(annotation=empty) for parameter in parameters]
            arguments = str(inspect.Signature(plain))
        operations[name] = arguments
    shown = re.findall(rf"(?<=`){letter}\.(\w+)(\([^`]*\))?(?=`)", PAGE)
    # In prose a name may stand without its arguments; in the tables it has them.
    assert {name for name, _ in shown} == set(operations)
    full = [(name, arguments) for name, arguments in shown if arguments or not operations[name]]
    examples = {"op", "loop", "name"}
    assert {name for name, _ in full} == set(operations)
    wrong = [(n, arguments) for n, arguments in full if operations[n] != arguments]
    assert [(n, arguments) for n, arguments in wrong if n not in examples] == []
    assert all((name, operations[name]) in full for name in examples & set(operations))


def test_every_kind_of_instruction_is_there():
    methods = {"bra", "ret", "ld", "st", "mov", "cvta"}  # written by k itself
    named = set(re.findall(r"`(?:k\.op\(\")?([a-z]\w*(?:\.[\w:]+)+)[`\"]", PAGE))
    named = {name for name in named if name.partition(".")[0] not in {*CLASSES, "ptx", "numpy"}}
    assert len(named) > 20
    assert sorted(named - set(OPCODES)) == []
    without_method = {
        *("ex2", "lg2", "rcp", "rsqrt", "sin", "cos", "tanh"),
        *("popc", "clz", "brev", "bfe", "prmt", "atom", "redux", "prefetch"),
    }
    roots = {name.partition(".")[0] for name in OPCODES}
    by_methods = {
        *("abs", "add", "and", "bar", "cp", "cvt", "div", "fence", "fma", "ldmatrix", "mad"),
        *("max", "min", "mma", "mul", "neg", "not", "or", "red", "rem", "selp", "setp", "shfl"),
        *("shl", "shr", "sqrt", "sub", "vote", "xor"),
    }
    assert roots == methods | by_methods | without_method  # a new one belongs on the page
    assert without_method <= {name.partition(".")[0] for name in named}
