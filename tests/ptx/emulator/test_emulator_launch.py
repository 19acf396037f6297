"""The emulator's reports, and the texts, grids and arguments that it takes."""

import ml_dtypes
import numpy as np
import pytest
from support.hand_written import COUNTING, kernel, output, run

from ptx.emulator import (
    Buffer,
    OutOfBoundsError,
    ParseError,
    StepLimitError,
    StoppedError,
    UnwrittenError,
    launch,
)
from ptx.emulator.program import load
from ptx.isa.opcodes import OPCODES, Opcode, OperandKind

THREADS = COUNTING[:32]

# ---- reports


def test_coverage_adds_up_over_launches():
    text = kernel(
        "setp.lt.u32 %p0, %n, 33;\n@%p0 bra SMALL;\nst.global.u32 [%aty], 2;\nret;\nSMALL:\n"
        "setp.eq.u32 %p1, %t, 99;\n@%p1 trap;\nst.global.u32 [%aty], 1;",
        "y",
    )
    small, large = run(text, output(32)), run(text, output(64), block=64)
    assert [line for _, line in small.never_executed] == [
        "st.global.u32 [%aty], 2",
        "ret",
        "@%p1 trap",
    ]
    both = small.merge(large)
    assert [line for _, line in both.never_executed] == ["@%p1 trap"]
    numbers = {line.strip(): i for i, line in enumerate(text.splitlines(), 1)}
    assert both.executed[numbers["mov.u32 %t, %tid.x;"]] == 96
    assert both.executed[numbers["st.global.u32 [%aty], 2;"]] == 64
    assert both.executed[numbers["@%p1 trap;"]] == 0
    with pytest.raises(ValueError, match="different kernels"):
        small.merge(run(kernel("st.global.u32 [%aty], 3;", "y"), output(32)))


@pytest.mark.parametrize(
    ("access", "stride", "ways"),
    [
        ("u32", 4, 1),
        ("u32", 8, 2),
        ("u32", 128, 32),
        ("u32", 132, 1),
        ("u32", 0, 1),
        ("u8", 1, 1),
        ("v2.u32", 8, 1),
        ("v4.u32", 16, 1),
        ("v4.u32", 32, 2),
        ("v4.u32", 144, 1),
    ],
)
def test_bank_conflicts(access, stride, ways):
    registers = {"v2": "{%r4, %r5}", "v4": "{%r4, %r5, %r6, %r7}"}.get(access[:2], "%r4")
    text = kernel(
        f"""
        mov.u32 %r0, a;
        mov.u32 %r1, 0;
        FILL:
        mad.lo.u32 %r2, %r1, 512, %r0;
        mad.lo.u32 %r2, %t, 16, %r2;
        st.shared.v4.u32 [%r2], {{%t, %t, %t, %t}};
        add.u32 %r1, %r1, 1;
        setp.lt.u32 %p0, %r1, 10;
        @%p0 bra FILL;
        bar.sync 0;
        mad.lo.u32 %r3, %t, {stride}, %r0;
        ld.shared.{access} {registers}, [%r3];  // measured
        """,
        "",
        ".shared .align 16 .b8 a[5120];",
    )
    report = run(text)
    (line,) = (i for i, at in enumerate(text.splitlines(), 1) if "measured" in at)
    conflicts = report.bank_conflicts[line]
    assert (conflicts.worst, conflicts.mean) == (ways, ways)
    assert conflicts.phases == {"v2.u32": 2, "v4.u32": 4}.get(access, 1)


@pytest.mark.parametrize(
    ("stride", "offset", "sectors", "ideal"),
    [(4, 0, 4, 4), (4, 4, 5, 4), (32, 0, 32, 4), (0, 0, 1, 1)],
)
def test_sectors(stride, offset, sectors, ideal):
    text = kernel(
        f"mul.wide.u32 %d0, %t, {stride};\nadd.u64 %d0, %d0, %x;\n"
        f"ld.global.u32 %r0, [%d0+{offset}];  // measured",
        "x",
    )
    report = run(text, Buffer(np.zeros(1024, np.uint8)), grid=2)
    ((line, found),) = report.sectors.items()
    assert "measured" in text.splitlines()[line - 1]
    assert (found.requests, found.per_request, found.ideal) == (2, sectors, 2 * ideal)


# ---- the text, the launch and its arguments


def test_what_compilers_write_beside_instructions():
    text = """
    //
    .version 8.1
    .target sm_90, debug /* two
    lines */
    .address_size 64
        .file   1 "/somewhere/kernel.cu"
    .visible .entry other() { ret; }
    .weak .entry test(
        .param .u64 .ptr .global .align 16 out,
        .param .f32 scale
    )
    .maxntid 64, 1, 1
    .minnctapersm 2
    {
        .reg .pred %p<2>; .reg .b32 %r<4>;
        .reg .f32 %f<3>; .reg .b64 %rd<4>;
        .loc 1 10 5
        .pragma "nounroll";
        ld.param.u64 %rd1, [out]; ld.param.f32 %f1, [scale];
        { .reg .b32 %r<2>, t; mov.u32 t, %tid.x;
          mov.u32 %r1, 017; { .reg .b32 t; mov.b32 t, -0x1U; add.s32 %r1, %r1, t; }
          cvt.rn.f32.u32 %f2, t; mad.wide.u32 %rd2, t, 4, %rd1; mov.b32 %f0, %r1; }
        mov.b32 %r3, %f0;
        cvt.rn.f32.s32 %f0, %r3;
$L__BB0_1:
        fma.rn.f32 %f2, %f2, %f1, %f0;
        add.f32 %f2, %f2, 0f40000000; add.f32 %f2, %f2, -1.5; add.f32 %f2, %f2, 0d3FE0000000000000;
        st.global.f32 [%rd2 + 0], %f2; ret;
    }
    .section .debug_str { .b8 104, 0
    }
    """
    out = Buffer(np.zeros(64, np.float32), initialized=False)
    launch(text, 1, 64, [out, 0.5], kernel="test")
    np.testing.assert_array_equal(out.array, np.arange(64) * 0.5 + 15)
    with pytest.raises(ValueError, match="the module has the kernels other, test"):
        launch(text, 1, 64, [out, 0.5])


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("ret;", "ret", "a name is expected"),
        (".address_size 64", ".address_size 32", "64 is expected"),
        ("mov.u32 %t", "mov.u32 %t ?", "unexpected character"),
        ("mov.u32 %t, %tid.x;", "L: L: mov.u32 %t, %tid.x;", "label L stands twice"),
        (".reg .b16 %h<10>;", ".reg .b17 %h<10>;", "a type is expected"),
        (".reg .b16 %h<10>;", ".reg .b16 %t;", "declared twice"),
        (".reg .b16 %h<10>;", ".sreg .b8 %h;", r"directive .sreg is not supported"),
        (".visible .entry", ".extern .global .b32 table[4];\n.visible .entry", "not supported"),
        ("mov.u32 %t,", "@%t mov.u32 %t,", "predicate register is expected"),
        (".visible .entry test", ".visible test", "at the level of the module"),
    ],
)
def test_text_that_is_not_understood(old, new, message):
    text = kernel("st.global.u32 [%aty], %t;", "y")
    assert old in text
    with pytest.raises(ParseError, match=message) as info:
        run(text.replace(old, new, 1), output())
    assert info.value.line is not None
    run(text, output())


def test_text_that_ends_too_soon():
    text = kernel("st.global.u32 [%aty], %t;", "y")
    for end in range(0, len(text) - 3, 7):
        with pytest.raises(ParseError):
            run(text[:end], output())


def test_arguments_take_the_types_of_the_parameters():
    text = """
    .version 7.0
    .target sm_80
    .address_size 64
    .visible .entry test(.param .u64 out, .param .s32 a, .param .f64 b, .param .b16 c, .param .u8 d)
    {
        .reg .b64 %rd0; .reg .b32 %r<3>; .reg .b16 %h0; .reg .f64 %fd0; .reg .f32 %f0;
        ld.param.u64 %rd0, [out];
        ld.param.s32 %r0, [a];
        ld.param.f64 %fd0, [b];
        ld.param.b16 %h0, [c];
        ld.param.u8 %r1, [d];
        cvt.rn.f32.f64 %f0, %fd0;
        cvt.u32.u16 %r2, %h0;
        st.global.v4.b32 [%rd0], {%r0, %r1, %f0, %r2};
        ret;
    }
    """
    out = Buffer(np.zeros(4, np.int32), initialized=False)
    half = ml_dtypes.bfloat16(1.5)
    launch(text, 1, 1, [out, -7, np.float32(2.5), half, np.uint8(200)])
    assert out.array.tolist() == [-7, 200, np.float32(2.5).view(np.int32), half.view(np.uint16)]
    good = [out, 1, 1.0, half, 1]
    for position, bad, error, message in [
        (1, out, TypeError, "64-bit"),
        (1, 1 << 32, ValueError, "does not fit"),
        (1, 2.0, TypeError, "float"),
        (3, np.float32(1), TypeError, "another width"),
        (4, 256, ValueError, "does not fit"),
    ]:
        with pytest.raises(error, match=message):
            launch(text, 1, 1, [bad if i == position else a for i, a in enumerate(good)])
    with pytest.raises(TypeError, match="5 parameters, and 4"):
        launch(text, 1, 1, good[:4])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"block": 1025}, "1024"),
        ({"block": (1, 1, 65)}, "64 in z"),
        ({"block": 0}, "positive"),
        ({"grid": (1, 70000)}, "65535"),
        ({"grid": (1, 1, 1, 1)}, "one to three"),
        ({"dynamic_shared": -1}, "negative"),
        ({"dynamic_shared": 1 << 18}, "262144 bytes of shared memory, and a block of sm_90 has"),
        ({"kernel": "missing"}, "the module has the kernels test"),
    ],
)
def test_launches_that_a_driver_refuses(change, message):
    text = kernel("st.global.u32 [%aty], %t;", "y")
    with pytest.raises(ValueError, match=message):
        run(text, output(), **change)
    limited = text.replace(")\n{", ")\n.reqntid 32\n{", 1)
    run(limited, output())
    with pytest.raises(ValueError, match="reqntid"):
        run(limited, output(), block=64)


@pytest.mark.parametrize("schedule", [None, 3])
def test_a_launch_can_be_told_to_stop(schedule):
    text = kernel("LOOP:\nadd.u32 %r0, %t, 1;\nbra LOOP;", "y")
    asked = []

    def stop():
        asked.append(None)
        return len(asked) > 20

    with pytest.raises(StoppedError, match="told to stop"):
        run(text, output(), schedule=schedule, stop=stop)
    assert len(asked) == 21
    with pytest.raises(StepLimitError):
        run(text, output(), schedule=schedule, stop=lambda: False, step_limit=1000)


def test_buffers_are_copies_and_may_be_passed_twice():
    array = np.zeros(32, np.uint32)
    same = Buffer(array)
    run(
        kernel(
            "st.global.u32 [%aty], %t;\nld.global.u32 %r0, [%atx];\n"
            "add.u32 %r0, %r0, 1;\nst.global.u32 [%aty], %r0;"
        ),
        same,
        same,
    )
    np.testing.assert_array_equal(same.array, THREADS + 1)
    assert not array.any()
    with pytest.raises(ValueError, match="neither writable nor initialized"):
        Buffer(array, writable=False, initialized=False)


COPY_FAR = kernel(
    """
    mov.u32 %r0, %ctaid.x;
    mul.wide.u32 %d2, %r0, 128;
    cvt.u64.u32 %d3, %t;
    add.u64 %d2, %d2, %d3;
    mad.lo.u64 %d4, %d2, 4, %x;
    mad.lo.u64 %d5, %d2, 4, %y;
    ld.global.b32 %r2, [%d4];
    st.global.b32 [%d5], %r2;
    """
)


def test_windows_on_buffers_and_some_blocks():
    """The end of a copy of more than 2^32 elements."""
    blocks = 2**26
    first = 128 * (blocks - 3)
    x = Buffer(np.arange(256, dtype=np.uint32), writable=False, origin=first)
    y = Buffer(np.zeros(256, np.uint32), initialized=False, origin=first)
    chosen = [blocks - 2, blocks - 3]
    report = launch(COPY_FAR, blocks, 128, [x, y], blocks=chosen)
    np.testing.assert_array_equal(y.array, x.array)
    assert sum(sectors.requests for sectors in report.sectors.values()) == 2 * 2 * 4

    with pytest.raises(UnwrittenError, match="512 of 1024 bytes"):
        launch(COPY_FAR, blocks, 128, [x, y], blocks=chosen[:1])
    with pytest.raises(OutOfBoundsError, match=r"byte 1024 of argument 0 \(p_x\), which has 1024"):
        launch(COPY_FAR, blocks, 128, [x, y], blocks=[blocks - 1])
    with pytest.raises(OutOfBoundsError, match=r"byte -512 of argument 0 \(p_x\), which has 1024"):
        launch(COPY_FAR, blocks, 128, [x, y], blocks=[blocks - 4])
    wrapped = COPY_FAR.replace("mul.wide.u32 %d2", "mul.lo.u32 %r3").replace(
        "%r0, 128;", "%r0, 128; cvt.u64.u32 %d2, %r3;"
    )
    with pytest.raises(OutOfBoundsError):
        launch(wrapped, blocks, 128, [x, y], blocks=chosen)


@pytest.mark.parametrize("origin", [-64, 1, 63, 2**38])
def test_windows_that_no_address_fits(origin):
    with pytest.raises(ValueError, match=f"origin={origin} of uint32 .* a multiple of 256 below"):
        Buffer(np.zeros(4, np.uint32), origin=origin)


@pytest.mark.parametrize("blocks", [[], [-1], [0, 2]])
def test_blocks_that_are_not_there(blocks):
    with pytest.raises(ValueError, match="numbers from 0 to 1 are expected"):
        launch(COPY_FAR, 2, 128, [output(256), output(256)], blocks=blocks)


def test_empty_and_scalar_buffers():
    text = kernel("st.global.u32 [%y], 3;", "x y")
    scalar = Buffer(np.array(0, np.uint32), initialized=False)
    run(text, Buffer(np.zeros((0, 4), np.float32)), scalar, block=1)
    assert scalar.array.shape == ()
    assert scalar.array == 3


# ---- the builder's instructions


def _operand(kind: OperandKind, name: str, first: bool, registers: list[str]) -> str:
    def register() -> str:
        assert kind.dtype is not None
        width = kind.dtype.name if kind.dtype.bits != 8 else "b16"
        registers.append(f".reg .{width} %q{len(registers)};")
        return f"%q{len(registers) - 1}"

    match kind.kind:
        case "address":
            if name.startswith("ld.param"):
                return "[p_y]"
            return "[a]" if ".shared" in name and (first or "cp" not in name) else "[%y]"
        case "constant":
            return "16"
        case "label":
            return "END"
        case "vector":
            return f"{{{', '.join(register() for _ in range(kind.count))}}}"
    if kind.count == 1:
        return register()
    return f"{{{', '.join(register() for _ in range(kind.count))}}}"


@pytest.mark.parametrize("opcode", sorted({name.split(".")[0] for name in OPCODES}))
def test_every_instruction_of_the_builder_is_known(opcode):
    entries: list[Opcode] = [o for o in OPCODES.values() if o.name.split(".")[0] == opcode]
    lines, registers = [], []
    for entry in entries:
        for form in entry.forms:
            operands = [_operand(k, entry.name, i == 0, registers) for i, k in enumerate(form)]
            lines.append(f"{entry.name} {', '.join(operands)};")
    shared = "\n".join([".shared .align 16 .b8 a[64];", *registers])
    program = load(kernel("\n".join(lines) + "\nEND:", "y", shared), None)
    assert len(program.source.instructions) >= len(lines) > 0
