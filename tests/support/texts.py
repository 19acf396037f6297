"""PTX written by hand, for what stands below the builder."""

__all__ = ["COPY", "EMPTY", "spilling", "with_unreachable_instruction"]

COPY = """\
.version 7.0
.target sm_80
.address_size 64

// .entry commented_out()
.visible .entry copy(
    .param .u64 source,
    .param .u64 destination
)
.maxntid 64, 2
{
    .reg .b64 %rd<5>;
    .reg .b32 %r<2>;
    .shared .align 16 .b8 tile[768];

    ld.param.u64    %rd0, [source];
    ld.param.u64    %rd1, [destination];
    mov.u32         %r0, %tid.x;
    mul.wide.u32    %rd2, %r0, 4;
    add.u64         %rd3, %rd0, %rd2;
    add.u64         %rd4, %rd1, %rd2;
    ld.global.u32   %r1, [%rd3];
    st.shared.u32   [tile], %r1;
    bar.sync        0;
    ld.shared.u32   %r1, [tile+4];
    st.global.u32   [%rd4], %r1;
    ret;
}
"""
EMPTY = """
.visible .entry empty()
.reqntid 96
{
    ret;
}
"""


def spilling(values: int) -> str:
    """A kernel that keeps more values than the 24 registers that it may use."""
    loads = "\n".join(f"    ld.volatile.global.u32 %r{i}, [%rd0+{4 * i}];" for i in range(values))
    stores = "\n".join(f"    st.volatile.global.u32 [%rd0+{4 * i}], %r{i};" for i in range(values))
    return f"""\
.version 7.0
.target sm_80
.address_size 64
.visible .entry spilling(.param .u64 data)
.maxnreg 24
{{
    .reg .b64 %rd<1>;
    .reg .b32 %r<{values}>;
    ld.param.u64 %rd0, [data];
{loads}
{stores}
    ret;
}}
"""


def with_unreachable_instruction(text: str) -> str:
    """A kernel's text with one instruction more, before its end, which no thread reaches."""
    begin, end, rest = text.rpartition("    ret;\n}")
    assert end
    return f"{begin}    bra                    $END;\n    membar.gl;\n$END:\n{end}{rest}"
