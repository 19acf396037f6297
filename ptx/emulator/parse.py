"""The parser of PTX text. Source: PTX ISA, "Syntax", "State Spaces, Types, and Variables"."""

from __future__ import annotations

import dataclasses

from ptx.emulator.declarations import Declarations
from ptx.emulator.syntax import (
    Address,
    Code,
    FunctionSource,
    Instruction,
    IntegerLiteral,
    KernelSource,
    Module,
    ModuleVariable,
    Operand,
    Pair,
    Parameter,
    Register,
    Sink,
    Symbol,
    Variable,
    Vector,
)
from ptx.isa.dtypes import pred

__all__ = ["parse"]


def parse(text: str) -> Module:
    """Parses a PTX module.

    Debugging lines (`.file`, `.loc`, `.section`) and `.pragma` are skipped.

    Raises:
      ParseError: the text is not PTX, or it has a construct that the emulator does not have.
    """
    return _Parser(text).module()


_TAKES_CARRY = ("addc", "subc", "madc")
# Names that no register of the text can have; the first is the PTX ISA's.
_CARRY_FLAG, _BRANCH_TAKEN = "CC.CF", "brx.idx"


class _Parser(Declarations):
    """Each method reads one construct."""

    def __init__(self, text: str):
        super().__init__(text)
        self.scopes: list[dict[str, Register | Variable]] = []
        self.shared: list[Variable] = []
        self.variables: list[ModuleVariable] = []
        self.functions: dict[str, FunctionSource] = {}
        self.branch_targets: dict[str, list[str]] = {}

    # ---- the module

    def module(self) -> Module:
        target, kernels = "", []
        while self.now.kind != "end":
            word = self.take().text
            if word == ".target":
                target, *_ = (word.text for word in self.separated(self.take))
            elif word == ".version":
                self.take()
            elif word == ".address_size":
                if (size := self.take().text) != "64":
                    raise self.error(f".address_size 64 is expected, not {size}")
            elif word in (".visible", ".weak", ".common", ";"):
                continue
            elif word == ".shared" or (word == ".extern" and self.accept(".shared")):
                self.shared.extend(self.shared_variables(extern=word == ".extern"))
            elif word == ".func" or (word == ".extern" and self.accept(".func")):
                self.function()
            elif word in (".global", ".const"):
                self.variables.extend(self.module_variables(word[1:]))
            elif word == ".entry":
                kernels.append(self.entry())
            elif word in (".extern", ".tex"):
                raise self.error(f"{word} at the level of the module is not supported", back=1)
            else:
                raise self.error(f"{word!r} at the level of the module", back=1)
        return Module(target, kernels, self.functions, self.variables)

    def entry(self) -> KernelSource:
        kernel = KernelSource(self.now.text, self.line(self.now))
        self.kernel = self.take("word").text
        if self.accept("("):
            kernel.parameters.extend(self.separated_until(")", self.parameter))
        while self.now.kind == "word":
            name = self.take().text
            if name not in (".maxntid", ".reqntid", ".minnctapersm", ".maxnreg", ".pragma"):
                raise self.error(f"directive {name} of a kernel is not supported", back=1)
            values = []
            while self.now.kind in ("int", "string"):
                values.append(self.take().text)
                self.accept(",")
            if name == ".pragma":
                self.expect(";")
            else:
                kernel.limits[name[1:]] = tuple(int(value) for value in values)
        kernel.shared.extend(self.shared)
        self.body(kernel, {})
        return kernel

    def parameter(self) -> Parameter:
        self.expect(".param")
        dtype, count, _ = self.variable_type(
            ".ptr", ".global", ".shared", ".const", ".local", ".generic"
        )
        name = self.take("word").text
        for length in self.lengths():
            count *= length
        return Parameter(name, dtype, count)

    def function(self) -> None:
        """Reads a `.func`; one without a body only says that there is one."""
        results = self.formal_parameters()
        function = FunctionSource(self.now.text, self.line(self.now), results=results)
        self.kernel = self.take("word").text
        function.arguments.extend(self.formal_parameters())
        while self.now.text in (".noreturn", ".noinline"):
            self.take()
        if not self.accept(";"):
            function.local.extend((*function.results, *function.arguments))
            function.shared.extend(self.shared)
            self.body(function, {variable.name: variable for variable in function.local})
            self.functions[function.name] = function
        self.kernel = ""

    def formal_parameters(self) -> list[Variable]:
        return self.separated_until(")", self.formal_parameter) if self.accept("(") else []

    def formal_parameter(self) -> Variable:
        self.expect(".param")
        return self.variable(*self.variable_type())

    # ---- the body of a kernel or function

    def body(self, code: Code, names: dict[str, Variable]) -> None:
        """Reads what stands in braces; `names`: what the parameters are called."""
        self.expect("{")
        self.scopes, self.branch_targets = [dict(names)], {}
        while self.scopes:
            self.statement(code)
        self.kernel = ""

    def statement(self, code: Code) -> None:
        first = self.now
        if self.accept("{"):
            self.scopes.append({})
        elif self.accept("}"):
            self.scopes.pop()
        elif self.accept(";"):
            pass
        elif first.kind == "word" and self.following.text == ":":
            if first.text in code.labels:
                raise self.error(f"label {first.text} stands twice")
            code.labels[first.text] = len(code.instructions)
            self.take()
            self.take()
            if self.accept(".branchtargets"):
                self.branch_targets[first.text] = self.label_list()
        elif first.text.startswith("."):
            self.directive(code)
        else:
            instruction = self.instruction(code)
            if instruction.opcode == "brx":
                code.instructions.extend(self.branches(code, instruction))
            else:
                code.instructions.append(instruction)

    def directive(self, code: Code) -> None:
        word = self.take().text
        if word == ".reg":
            self.registers(code)
        elif word == ".shared" or (word == ".extern" and self.accept(".shared")):
            code.shared.extend(self.shared_variables(extern=word == ".extern"))
        elif word in (".local", ".param"):
            self.local_variables(code)
        elif word == ".pragma":
            self.take("string")
            self.expect(";")
        else:
            raise self.error(f"directive {word} is not supported", back=1)

    def registers(self, code: Code) -> None:
        dtype = self.dtype(self.take("word").text)
        while True:
            token = self.take("word")
            names = [token.text]
            if self.accept("<"):
                count = int(self.take("int").text)
                self.expect(">")
                names = [f"{token.text}{i}" for i in range(count)]
            for name in names:
                if name in self.scopes[-1]:
                    raise self.error(f"register {name} is declared twice")
                register = Register(name, len(code.registers), dtype)
                code.registers.append(register)
                self.scopes[-1][name] = register
            if not self.accept(","):
                break
        self.expect(";")

    def local_variables(self, code: Code) -> None:
        """Reads what follows `.local` or `.param`, up to and with the semicolon."""
        dtype, count, alignment = self.variable_type()
        known = {variable.name for variable in code.local}
        while True:
            declared = self.variable(dtype, count, alignment)
            if declared.name in self.scopes[-1]:
                raise self.error(f"variable {declared.name} is declared twice")
            name = declared.name
            if name in known:  # in another scope
                name = f"{name}@{len(code.local)}"
            variable = dataclasses.replace(declared, name=name)
            code.local.append(variable)
            self.scopes[-1][declared.name] = variable
            if not self.accept(","):
                break
        self.expect(";")

    # ---- instructions

    def instruction(self, code: Code) -> Instruction:
        first, guard = self.now, None
        if self.accept("@"):
            negated = self.accept("!")
            guard = self.operand()
            if not isinstance(guard, Register) or guard.dtype.kind != "predicate":
                raise self.error("a predicate register is expected after @", back=1)
            guard = dataclasses.replace(guard, negated=negated)
        opcode, *modifiers = self.take("word").text.split(".")
        operands: list[Operand] = []
        while self.now.text != ";":
            operands.append(self.operand())
            if self.now.text != ";":
                self.expect(",")
        end = self.take().start
        if opcode in _TAKES_CARRY or "cc" in modifiers:
            operands.append(self.carry_flag(code))
        text = " ".join(self.text[first.start : end].split())
        return Instruction(opcode, tuple(modifiers), tuple(operands), guard, self.line(first), text)

    def label_list(self) -> list[str]:
        labels = self.separated(lambda: self.take("word").text)
        self.expect(";")
        return labels

    def branches(self, code: Code, choice: Instruction) -> list[Instruction]:
        """`brx.idx` as a comparison and a branch for each label, and a trap after the last."""
        index, table = (*choice.operands, None, None)[:2]
        labels = self.branch_targets.get(table.name) if isinstance(table, Symbol) else None
        if labels is None or not isinstance(index, Register) or choice.guard is not None:
            raise self.error(
                "brx.idx needs a register and .branchtargets, and no predicate", back=1
            )
        predicate = Register(_BRANCH_TAKEN, len(code.registers), pred)
        code.registers.append(predicate)
        instructions = []
        for position, label in enumerate(labels):
            instructions += [
                dataclasses.replace(
                    choice,
                    opcode="setp",
                    modifiers=("eq", "u32"),
                    operands=(predicate, index, IntegerLiteral(position)),
                ),
                dataclasses.replace(
                    choice, opcode="bra", modifiers=(), operands=(Symbol(label),), guard=predicate
                ),
            ]
        trap = dataclasses.replace(choice, opcode="trap", modifiers=(), operands=())
        return [*instructions, trap]

    def carry_flag(self, code: Code) -> Register:
        """The condition code, a register that no operand names."""
        flag = self.scopes[0].get(_CARRY_FLAG)
        if not isinstance(flag, Register):
            flag = Register(_CARRY_FLAG, len(code.registers), pred)
            code.registers.append(flag)
            self.scopes[0][_CARRY_FLAG] = flag
        return flag

    # ---- operands

    def operand(self) -> Operand:
        for start, end in ("{}", "()"):  # a vector; the results or arguments of a call
            if self.accept(start):
                return Vector(tuple(self.separated_until(end, self.single)))
        if self.accept("["):
            address = self.address()
            self.expect("]")
            return address
        value = self.single()
        if self.accept("|"):
            return Pair(value, self.single())
        return value

    def single(self) -> Operand:
        """A register, constant or symbol."""
        if self.accept("!"):
            value = self.single()
            if not isinstance(value, Register) or value.dtype.kind != "predicate":
                raise self.error("! stands before something that is not a predicate", back=1)
            return dataclasses.replace(value, negated=True)
        if self.now.text in ("-", "+") or self.now.kind in ("int", "float"):
            return self.number()
        name = self.take("word").text
        if name == "_":
            return Sink()
        if name == "WARP_SZ":
            return IntegerLiteral(32)
        for scope in reversed(self.scopes):
            if (found := scope.get(name)) is not None:
                if isinstance(found, Register):
                    return found
                name = found.name
                break
        return Symbol(name, self.constant_offset())

    def address(self) -> Address:
        if self.now.kind == "int":
            return Address(None, self.integer(self.take().text) + self.constant_offset())
        base = self.single()
        if isinstance(base, Symbol):
            return Address(Symbol(base.name), base.offset)
        if not isinstance(base, Register):
            raise self.error("an address needs a register or a variable", back=1)
        return Address(base, self.constant_offset())
