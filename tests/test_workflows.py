"""GitHub's files: workflows run what exists and have no needless rights; forms are complete."""

import re
import tomllib

import pytest
import yaml
from support.paths import ROOT

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PYTHONS = {
    version
    for classifier in PROJECT["classifiers"]
    for version in re.findall(r"^Programming Language :: Python :: (3\.\d+)$", classifier)
}
WRITES = {
    ("monthly.yml", "tag"): {"actions": "write", "contents": "write"},
    ("docs.yml", "deploy"): {"pages": "write", "id-token": "write"},
    ("wheels.yml", "publish"): {"id-token": "write"},
    ("wheels.yml", "release"): {"contents": "write"},
}


def load(path):
    return yaml.safe_load(path.read_text())


def jobs():
    return [(path, name, job) for path in WORKFLOWS for name, job in load(path)["jobs"].items()]


def steps():
    return [step for _, _, job in jobs() for step in job.get("steps", [])]


def test_workflows_run_files_and_extras_that_exist():
    commands = "\n".join(step["run"] for step in steps() if "run" in step)
    files = re.findall(r"(?<![\w/])\.ci/\w+(?:\.py)?", commands)
    assert set(files) == {".ci/run", ".ci/smoke.py", ".ci/release.py", ".ci/versions.py"}
    watched = load(ROOT / ".github/workflows/wheels.yml")[True]["pull_request"]["paths"]  # `on`
    for path in [*files, *watched]:
        assert list(ROOT.glob(path)), path
    extras = {
        name for group in re.findall(r"\.\[([\w,]+)\]", commands) for name in group.split(",")
    }
    assert extras == {"docs", "test"}
    assert extras <= set(PROJECT["optional-dependencies"])
    for _, _, job in jobs():
        assert "uses" not in job or (ROOT / job["uses"]).is_file()


def test_workflows_write_nowhere_but_where_they_must():
    for path in WORKFLOWS:
        assert load(path)["permissions"] == {"contents": "read"}, path.name
    allowed = {(path.name, name): job.get("permissions") for path, name, job in jobs()}
    assert {job: permissions for job, permissions in allowed.items() if permissions} == WRITES


def test_archives_are_published_of_a_tag_after_all_tests():
    wheels = load(ROOT / ".github/workflows/wheels.yml")["jobs"]
    for name in ("publish", "release"):
        assert wheels[name]["if"] == "github.ref_type == 'tag'"
    tested = {name for name in wheels if name not in ("build", "publish", "release")}
    assert set(wheels["publish"]["needs"]) == tested
    assert wheels["release"]["needs"] == "publish"
    assert {wheels[name]["needs"] for name in tested - {"tests"}} == {"build"}


def test_actions_have_one_major_version():
    used = {step["uses"] for step in steps() if "uses" in step}
    names = [action.partition("@")[0] for action in used]
    assert len(names) == len(set(names)), used
    for action in used - {"pypa/gh-action-pypi-publish@release/v1"}:
        assert re.fullmatch(r"actions/[\w-]+@v\d+", action), action


def test_every_supported_python_is_tested():
    assert f">={min(PYTHONS, key=lambda v: int(v[2:]))}" == PROJECT["requires-python"]
    listed = [
        (path.stem, job["strategy"]["matrix"].get("python"))
        for path, _, job in jobs()
        if "strategy" in job
    ]
    matrices = [(stem, set(versions)) for stem, versions in listed if versions]
    assert matrices == [("tests", PYTHONS), ("wheels", PYTHONS)]
    ci = load(ROOT / ".github/workflows/ci.yml")["jobs"]["ci"]["steps"]
    (versions,) = [
        step["with"]["python-version"] for step in ci if "python-version" in step.get("with", {})
    ]
    newest = max(PYTHONS, key=lambda version: int(version[2:]))
    assert set(versions.split()) == PYTHONS - {newest}  # which is tested each night


def test_every_tier_is_run():
    commands = "\n".join(step["run"] for step in steps() if "run" in step)
    assert "pytest -m quick" in commands
    assert 'pytest -m "${{ matrix.mark }}"' in commands
    assert load(ROOT / ".github/workflows/tests.yml")["jobs"]["rest"]["strategy"]["matrix"] == {
        "mark": ["slow", "proof", "slow and proof"]
    }


def test_ci_runs_the_same_at_any_time():
    script = (ROOT / ".ci" / "run").read_text()
    assert not re.search(r"\bdate\b|EPOCH|RANDOM", script)
    assert re.findall(r".*\bSECONDS\b.*", script) == [
        'step() { printf \'\\n=== %s (%s s)\\n\' "$*" "$SECONDS"; }'
    ]


def test_gpu_tests_that_ci_runs_exist():
    named = (ROOT / "tests" / "virtual_gpu" / "smoke.txt").read_text().split()
    assert len(set(named)) == len(named)
    for test in named:
        path, _, function = test.partition("[")[0].partition("::")
        assert f"def {function}(" in (ROOT / path).read_text(), test
    for family in ("conv", "deform_conv", "gemm", "sampling"):
        assert any(f"/{family}/" in test for test in named)


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.stem)
def test_issue_forms(path):
    form = load(path)
    assert {"name", "description", "labels", "body"} == set(form)
    fields = [field for field in form["body"] if field["type"] != "markdown"]
    kinds = {"textarea", "input", "dropdown", "checkboxes"}
    assert {field["type"] for field in fields} <= kinds
    ids = [field["id"] for field in fields]
    assert len(set(ids)) == len(ids)
    for field in fields:
        assert field["attributes"]["label"]
        assert field["type"] not in ("dropdown", "checkboxes") or field["attributes"]["options"]
    assert any(field.get("validations", {}).get("required") for field in fields)
    assert ("python -m oxijax info" in path.read_text()) == (path.stem != "feature")
