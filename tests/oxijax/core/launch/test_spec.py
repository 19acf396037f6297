"""A call's description of its kernel: written, read, and refused where it means nothing."""

import dataclasses
import json

import numpy as np
import pytest
from support import launch_samples
from support.launch_samples import Elementwise

from oxijax._core import launch as _launch
from oxijax._core.launch._spec import Spec, key_of
from ptx import DType, f16, f32, registry

pytestmark = pytest.mark.quick


def _json(content) -> str:
    return json.dumps(content, sort_keys=True, separators=(",", ":"))


class TestSpec:
    SPEC = Spec(
        "accumulate",
        Elementwise(0.1, 64),
        grouped=(1,),
        emulation=_launch.Emulation("sm_80", 7),
    )

    def test_round_trip(self):
        assert Spec.from_json(self.SPEC.to_json()) == self.SPEC

    def test_key_is_of_the_content_alone(self):
        text = self.SPEC.to_json()
        assert 0 <= key_of(text) < 2**63
        other = dataclasses.replace(self.SPEC, config=Elementwise(0.1, 128)).to_json()
        assert len({key_of(text), key_of(other), key_of(text)}) == 2

    def test_configuration_of_tuples_and_dtypes(self, monkeypatch):
        @dataclasses.dataclass(frozen=True)
        class Config:
            dtype: DType = f16
            pads: tuple[tuple[int, int], ...] = ((1, 2), (3, 4))
            name: str | None = None

        configs = {"default": Config()}
        kernel = dataclasses.replace(launch_samples.BROKEN, name="spec_test", configs=configs)
        monkeypatch.setitem(registry.KERNELS, "spec_test", kernel)
        spec = dataclasses.replace(self.SPEC, kernel="spec_test", config=Config(f32))
        assert Spec.from_json(spec.to_json()) == spec

    def test_field_that_older_specs_do_not_have(self, monkeypatch):
        """It is left out at its default, so that they mean the same and have the same key."""

        @dataclasses.dataclass(frozen=True)
        class Config:
            size: int = 3
            later: bool = dataclasses.field(default=False, metadata={"optional": True})

        kernel = dataclasses.replace(
            launch_samples.BROKEN, name="spec_test_optional", configs={"default": Config()}
        )
        monkeypatch.setitem(registry.KERNELS, "spec_test_optional", kernel)
        old = '{"config":{"size":3},"kernel":"spec_test_optional"}'
        assert Spec.from_json(old) == Spec("spec_test_optional", Config())
        assert Spec("spec_test_optional", Config()).to_json() == old
        new = Spec("spec_test_optional", Config(later=True))
        assert new.to_json() == old.replace('"size"', '"later":true,"size"')
        assert Spec.from_json(new.to_json()) == new
        with pytest.raises(ValueError, match="the spec is not canonical; expected"):
            Spec.from_json(old.replace('"size"', '"later":false,"size"'))
        with pytest.raises(TypeError, match="Config has the fields later, size"):
            Spec.from_json(old.replace('"size":3', '"later":true'))

    @pytest.mark.parametrize(
        ("wrong", "message"),
        [
            ({"alpha": "0.1"}, "alpha must be float, got '0.1'"),
            ({"block": True}, "block must be int, got True"),
            ({"block": 64.0}, "block must be int, got 64.0"),
            ({"block": None}, "block must be int, got None"),
            ({"blocks": 64}, "Elementwise has the fields alpha, block"),
            ({"block": {"dtype": "f99"}}, "a dtype is"),
            ({"block": {"dtype": []}}, "a dtype is"),
        ],
    )
    def test_field_of_another_type(self, wrong, message):
        content = json.loads(self.SPEC.to_json())
        content["config"] |= wrong
        with pytest.raises(TypeError, match=message):
            Spec.from_json(_json(content))

    @pytest.mark.parametrize(
        ("part", "wrong", "message"),
        [
            ("kernel", 7, "the kernel of a spec is its name, got 7"),
            ("config", [], "Elementwise has the fields"),
            ("grouped", [1.0], "grouped must be"),
            ("grouped", "1", "grouped must be"),
            (
                "emulation",
                {"target": "sm_80"},
                "Emulation has the fields dry_run, schedule, target",
            ),
        ],
    )
    def test_part_of_another_type(self, part, wrong, message):
        content = json.loads(self.SPEC.to_json())
        content[part] = wrong
        with pytest.raises(TypeError, match=message):
            Spec.from_json(_json(content))

    @pytest.mark.parametrize(
        "change",
        [
            lambda text: text + " ",
            lambda text: text[:-1],
            lambda text: text.replace("{", '{"extra":1,', 1),
            lambda text: text.replace('"block":64', '"block":1,"block":64'),
            lambda text: text.encode("utf-16"),
            lambda text: b"\xff" + text.encode(),
            lambda text: "[" * 50_000,
            lambda text: "null",
            lambda text: text.replace("0.1", "NaN"),
            lambda text: text.replace("64", "6" * 5000),
            lambda text: text.replace("64", "6" * 2**16),
        ],
    )
    def test_text_that_is_not_written_so(self, change):
        with pytest.raises(
            ValueError, match=r"a spec (is|has)|invalid JSON|not canonical|not JSON compliant"
        ):
            Spec.from_json(change(self.SPEC.to_json()))

    @pytest.mark.parametrize("alpha", [1j, np.float32(1), [1.0], {"a": 1}])
    def test_value_without_a_place(self, alpha):
        spec = dataclasses.replace(self.SPEC, config=Elementwise(alpha))  # pyright: ignore[reportArgumentType]
        with pytest.raises(TypeError, match="has no place in a kernel's spec"):
            spec.to_json()

    def test_nan(self):
        spec = dataclasses.replace(self.SPEC, config=Elementwise(float("nan")))
        with pytest.raises(ValueError, match="not JSON compliant"):
            spec.to_json()

    def test_unknown_kernel(self):
        text = self.SPEC.to_json().replace("accumulate", "nonesuch")
        with pytest.raises(KeyError, match="no kernel 'nonesuch' is registered"):
            Spec.from_json(text)
