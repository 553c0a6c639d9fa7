"""Imports run one way, and PyCUDA is loaded only where a GPU is asked for."""

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import tsm2_tune
from tests.command import loaded_modules
from tsm2_tune.cli import COMMANDS

pytestmark = pytest.mark.slow

PACKAGE = Path(tsm2_tune.__file__).parent
ALLOWED = {  # what each folder may import
    "errors": set[str](),
    "runtime": {"runtime"},
    "generator": {"errors", "generator", "runtime"},
    "pretuned": {"errors", "pretuned"},
    "tuner": {"errors", "generator", "pretuned", "runtime", "tuner"},
    "interpose": {"errors", "generator", "interpose", "pretuned", "runtime", "tuner"},
    "html": {"console", "generator", "html", "tuner"},
    "api": {"api", "errors", "generator", "html", "pretuned", "tuner"},
    "console": {"api", "console", "errors", "generator", "interpose", "tuner"},
    "commands": {"api", "commands", "console", "errors", "generator", "interpose", "pretuned", "tuner"},
    "cli": {"commands"},
    "__main__": {"cli"},
    "__init__": {"api", "errors", "generator", "tuner"},
}


def test_imports_run_one_way() -> None:
    wrong = []
    for path in PACKAGE.rglob("*.py"):
        layer = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        tree = ast.parse(path.read_text())
        for node in tree.body if layer == "runtime" else ast.walk(tree):  # of a runtime, when it is imported
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tsm2_tune."):
                target = (node.module or "").split(".")[1]
                if target not in ALLOWED[layer]:
                    wrong.append(f"{path.name} imports {node.module}")
    assert wrong == []


def commands_run(*commands: list[str]) -> str:
    return f"from tsm2_tune.cli import main\nfor command in {commands!r}: main(command, standalone_mode=False)"


def test_planning_loads_neither_database_nor_pycuda(tmp_path: Path) -> None:
    shapes = ["--device", "h200", "--shapes", "64x4x64"]
    source = ["source", "tsm2:version=v0,threads=32,columns=1,prefetch=1"]
    assert "sqlalchemy" not in loaded_modules(commands_run(source, ["model", *shapes], ["devices"]))
    opened = f"with Store.open({str(tmp_path / 'results.db')!r}, create=True): pass"
    imports = "import tsm2_tune.api.tune\nfrom tsm2_tune.tuner.results.store import Store"
    loaded = loaded_modules(f"{commands_run(['space', *shapes])}\n{imports}\n{opened}")
    assert not any(name.startswith("pycuda") for name in loaded)
    assert not loaded & {"sqlalchemy.dialects.postgresql", "tsm2_tune.tuner.results.storage.postgresql"}


OF_THE_TUNER = {"pycuda", "sqlalchemy", "click", "rich", "multiprocessing"}
OF_THE_GENERATOR = {"jinja2", "sqlalchemy", "tsm2_tune.generator.families"}
HEAVY = {"jinja2", "multiprocessing", "numpy", "pycuda", "rich", "sqlalchemy"}


def test_help_wrong_input_and_completion_load_nothing_heavy() -> None:
    commands = [[], ["--help"], *([name, "--help"] for name in COMMANDS), ["--shapes", "64x8"], ["best", "--nothing"]]
    run = (
        "import contextlib, io\nfrom click.shell_completion import ShellComplete\nfrom tsm2_tune.cli import main\n"
        f"for command in {commands!r}:\n"
        "    with contextlib.suppress(SystemExit), contextlib.redirect_stderr(io.StringIO()): main(command)\n"
        "shell = ShellComplete(main, {}, 'tsm2-tune', '_TSM2_TUNE_COMPLETE')\n"
        "assert [one.value for one in shell.get_completions([], '--dev')] == ['--device']\n"
        "assert shell.get_completions(['best', '--dtype'], 'f3')[0].value == 'f32'\nprint()"
    )
    assert not loaded_modules(run) & HEAVY


def test_version_and_help_load_no_kernel_family() -> None:
    own = {name for name in loaded_modules(commands_run(["--version"], ["--help"])) if name.startswith("tsm2_tune.")}
    assert {name.split(".")[1] for name in own} == {"cli", "commands", "console", "errors", "tuner"}
    assert len(own) <= 16, sorted(own)


@pytest.mark.parametrize(
    ("modules", "others"),
    [
        ("tsm2_tune.generator.space.space, tsm2_tune.generator.render", OF_THE_TUNER),
        ("tsm2_tune.tuner.worker.client, tsm2_tune.tuner.device.emulator.device", OF_THE_GENERATOR),
    ],
)
def test_the_generator_and_a_worker_load_little(modules: str, others: set[str]) -> None:
    assert not loaded_modules(f"import {modules}") & others


def file_of(module: Path) -> Path | None:
    return next((one for one in (module.with_suffix(".py"), module / "__init__.py") if one.is_file()), None)


def imports_of(path: Path) -> set[Path]:
    """The package's files that this one imports, wherever in it, also for a type checker alone."""
    found = set[Path]()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == PACKAGE.name:
            module = PACKAGE.parent.joinpath(*(node.module or "").split("."))
            found.update(file_of(module / alias.name) or file_of(module) or path for alias in node.names)
    return found - {path}


def test_no_file_needs_itself_through_others() -> None:
    """But for the package's own file, which names what is public."""
    needs = {path: imports_of(path) - {PACKAGE / "__init__.py"} for path in PACKAGE.rglob("*.py")}
    with pytest.raises(CycleError):
        TopologicalSorter(needs | {PACKAGE / "errors.py": {PACKAGE / "cli.py"}}).prepare()
    TopologicalSorter(needs).prepare()
