"""Launches that are modelled: which blocks run, what is cold, and how the rest is extrapolated."""

import dataclasses

import numpy as np
import pytest

from ptx import f32
from ptx.definition import In, Instance, KernelDefinition, Out, Size
from ptx.emulator import Buffer
from ptx.model import Modelled, floor_us, model, model_text, second_pass_us
from ptx.replay import MACHINES

pytestmark = pytest.mark.slow

H200 = MACHINES["H200"]


@dataclasses.dataclass(frozen=True)
class Config:
    float_type = f32


def copy_body(k, config, plan, p):
    at = k.ctaid() * 128 + k.tid()
    with k.if_(at < p.n):
        p.y.store(at, p.x.load(at))


COPY = KernelDefinition(
    name="copy",
    configs={"f32": Config()},
    parameters=(In("x", "n"), Out("y", "n"), Size("n", lambda i: i.sizes["n"])),
    body=copy_body,
    grid=lambda instance: (-(-instance.sizes["n"] // 128), 1, 1),
)


def modelled(elements: int, **options) -> Modelled:
    shapes = {"x": (elements,), "y": (elements,)}
    operands = {"x": np.ones(elements, np.float32)}
    return model(COPY, Config(), operands, shapes, H200, **options)


def test_a_copy_is_bounded_by_memory():
    elements = 132 * 128 * 400
    copy = modelled(elements)
    bound = 1e6 * 8 * elements / H200.memory
    assert copy.limit == "memory"
    assert 1.0 < (copy.us - H200.launch_us) / bound < 1.25
    # Twice as many blocks, of which no more were replayed, take twice as long.
    assert modelled(2 * elements).us - copy.us == pytest.approx(copy.us - H200.launch_us, rel=0.03)


def test_a_text_is_modelled_as_its_kernel():
    elements = 128 * 132
    launch = COPY.launch(Config(), H200.target, [(elements,), (elements,)])
    arguments = [Buffer(np.ones(elements, np.float32)), Buffer(np.zeros(elements, "f4")), elements]
    found = model_text(launch.text, launch.grid, launch.block, arguments, H200)
    assert found == modelled(elements)


def test_a_small_launch_waits():
    one, few = modelled(128), modelled(128 * 132)
    assert one.limit == few.limit == "latency"
    assert H200.launch_us < one.us < few.us < H200.launch_us + 2
    assert (one.blocks_per_sm, one.shared_bytes) == (16, 0)


def test_an_empty_launch_takes_no_time():
    assert modelled(0).us == 0


def test_a_second_pass():
    assert second_pass_us(0, H200) == 0
    assert second_pass_us(3.7e9, H200) == pytest.approx(1000 + H200.launch_us)
    both = modelled(128, later_bytes=3.7e6).us
    assert both == pytest.approx(modelled(128).us + 1 + H200.launch_us)


def test_the_floor():
    assert floor_us(989.5e12 / 2 * 1e-6, 0, 989.5, H200) == pytest.approx(1)
    assert floor_us(1, 3.7e12 * 2e-6, 989.5, H200) == pytest.approx(2)


def test_shapes_are_those_of_the_launch():
    instance = COPY.instance(Config(), "sm_90", [(300,), (300,)])
    assert isinstance(instance, Instance)
    assert COPY.launch(Config(), "sm_90", [(300,), (300,)]).grid == (3, 1, 1)
