"""Flattens code: some definitions and all that they stand on in hasten become one text that imports no hasten.

A bundle's `run.py` is made this way, so that what runs outside hasten is what was measured inside.
"""

from __future__ import annotations

import ast
import builtins
import importlib
import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from hasten.errors import Failed

DROPPED_METHODS = frozenset({"operators", "devices"})
"""Methods left out: profiling and choosing stay with hasten."""

Import = tuple[str, str | None, str]
"""Module, the name taken from it (None for the module itself), and the name that it has here."""


@dataclass(frozen=True)
class Flat:
    """`imports` are lines; `sections` are (module, its purpose, source text) in the order in which they must stand.

    `hints` are names that only annotations mention, and that nothing in the text defines.
    """

    imports: tuple[str, ...]
    sections: tuple[tuple[str, str, str], ...]
    hints: tuple[str, ...]


@dataclass
class _Module:
    name: str
    lines: list[str]
    purpose: str
    definitions: dict[str, ast.stmt] = field(default_factory=dict)
    imports: dict[str, Import] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)

    def nodes(self) -> list[ast.stmt]:
        """The definitions in use, each once, in the order of the file."""
        found = {id(node): node for name, node in self.definitions.items() if name in self.used}
        return sorted(found.values(), key=lambda node: node.lineno)


def flatten(
    roots: Sequence[tuple[str, str]], also: Sequence[Import] = (), rename: Mapping[str, str] | None = None
) -> Flat:
    """The definitions `roots`, as (module, name), with everything they use.

    `also` are imports that the caller needs besides; `rename` gives definitions other names. Raises `Failed` where the
    code cannot be flattened: two modules define the same name, or a function imports hasten when it runs.
    """
    modules: dict[str, _Module] = {}
    reached: dict[str, str] = {}
    outside: set[Import] = set(also)

    def module_of(name: str) -> _Module:
        if name not in modules:
            modules[name] = _read(name)
        return modules[name]

    def reach(module_name: str, name: str) -> None:
        module = module_of(module_name)
        if name not in module.definitions:
            source, original, _ = module.imports.get(name, ("", None, ""))
            if original is None:
                raise Failed(f"{module_name} does not define {name}")
            return reach(source, original)  # a package that passes on another module's name
        if name in reached:
            if reached[name] != module_name:
                raise Failed(f"{module_name} and {reached[name]} both define {name}: one file cannot hold both")
            return None
        reached[name] = module_name
        module.used.add(name)
        for used in _names(module.definitions[name]):
            if used in module.definitions:
                reach(module_name, used)
            elif used in module.imports:
                source, original, _ = module.imports[used]
                if not _own(source):
                    outside.add(module.imports[used])
                elif original is None or original != used:
                    raise Failed(f"{module_name} imports {used} under another name, which one file cannot follow")
                else:
                    reach(source, original)
        return None

    for module_name, name in roots:
        reach(module_name, name)
    ordered = [module for module in _sorted(list(modules.values())) if module.used]
    hints = _annotated(ordered, outside)
    known = {*reached, *(used for *_, used in outside), *dir(builtins)}
    sections = tuple(
        (module.name, module.purpose, "\n\n\n".join(_text(module, node, rename or {}) for node in module.nodes()))
        for module in ordered
    )
    return Flat(tuple(_import_lines(outside)), sections, tuple(sorted(hints - known)))


def _read(name: str) -> _Module:
    source = inspect.getsource(importlib.import_module(name))
    tree = ast.parse(source)
    module = _Module(name, source.splitlines(), (ast.get_docstring(tree) or "").split("\n")[0])
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            module.definitions[node.name] = node
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                for part in ast.walk(target):
                    if isinstance(part, ast.Name):
                        module.definitions[part.id] = node
        elif isinstance(node, ast.ImportFrom) and node.module and node.module != "__future__":
            for alias in node.names:
                used = alias.asname or alias.name
                module.imports[used] = (node.module, alias.name, used)
        elif isinstance(node, ast.Import):
            for alias in node.names:
                used = alias.asname or alias.name.partition(".")[0]
                module.imports[used] = (alias.name, None, used)
    return module


def _own(module: str) -> bool:
    return module == "hasten" or module.startswith("hasten.")


def _names(node: ast.AST) -> Iterator[str]:
    """Names that are looked up in the module when the code runs: annotations are only text there."""
    if isinstance(node, ast.FunctionDef) and node.name in DROPPED_METHODS:
        return
    if isinstance(node, ast.ImportFrom) and node.module and _own(node.module):
        raise Failed(f"a function imports {node.module} when it runs, which one file cannot")
    if isinstance(node, ast.FunctionDef | ast.Lambda):
        yield from (name for name in _inner_names(node) if name not in _bound(node))
    else:
        yield from _inner_names(node)


def _inner_names(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Name):
        yield node.id
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _names(child)


def _bound(function: ast.FunctionDef | ast.Lambda) -> set[str]:
    """Parameters and local variables."""
    found = {argument.arg for argument in ast.walk(function.args) if isinstance(argument, ast.arg)}
    for part in ast.walk(function):
        if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store):
            found.add(part.id)
    return found


def _annotated(modules: Sequence[_Module], outside: set[Import]) -> set[str]:
    """The names in annotations; those that come from outside hasten are added to the imports."""
    found: set[str] = set()
    for module in modules:
        for node in module.nodes():
            for part in ast.walk(node):
                for annotation in (getattr(part, "annotation", None), getattr(part, "returns", None)):
                    if annotation is not None:
                        found.update(name.id for name in ast.walk(annotation) if isinstance(name, ast.Name))
        for name in found & set(module.imports):
            if not _own(module.imports[name][0]):
                outside.add(module.imports[name])
    return found


def _sorted(modules: Sequence[_Module]) -> list[_Module]:
    """Each module after those it imports from."""
    by_name = {module.name: module for module in modules}
    found: list[_Module] = []

    def visit(module: _Module, above: frozenset[str]) -> None:
        if module in found or module.name in above:
            return
        for source, *_ in module.imports.values():
            if source in by_name:
                visit(by_name[source], above | {module.name})
        found.append(module)

    for module in modules:
        visit(module, frozenset())
    return found


def _text(module: _Module, node: ast.stmt, rename: Mapping[str, str]) -> str:
    """The source of a definition, with its decorators and the comments above it, without the dropped methods."""
    first = min([node.lineno, *(decorator.lineno for decorator in getattr(node, "decorator_list", []))])
    while first > 1 and module.lines[first - 2].startswith("#"):
        first -= 1
    left_out: set[int] = set()
    for child in node.body if isinstance(node, ast.ClassDef) else []:
        if isinstance(child, ast.FunctionDef) and child.name in DROPPED_METHODS:
            left_out.update(range(child.lineno, (child.end_lineno or child.lineno) + 2))  # and the blank line below
    last = node.end_lineno or node.lineno
    lines = {number: module.lines[number - 1] for number in range(first, last + 1) if number not in left_out}
    for part in sorted(ast.walk(node), key=lambda part: -getattr(part, "col_offset", 0)):
        if isinstance(part, ast.Name) and part.id in rename and part.lineno in lines:
            line = lines[part.lineno].encode()
            start, end = part.col_offset, part.col_offset + len(part.id.encode())
            lines[part.lineno] = (line[:start] + rename[part.id].encode() + line[end:]).decode()
    if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name in rename:
        lines[node.lineno] = lines[node.lineno].replace(node.name, rename[node.name], 1)
    return "\n".join(lines.values())


def _import_lines(outside: set[Import]) -> Iterator[str]:
    for source, original, used in sorted(outside, key=str):
        if original is None:
            yield f"import {source}" if used == source.partition(".")[0] else f"import {source} as {used}"
    grouped: dict[str, list[str]] = {}
    for source, original, used in sorted(outside, key=str):
        if original is not None:
            grouped.setdefault(source, []).append(original if original == used else f"{original} as {used}")
    for source, names in sorted(grouped.items()):
        yield f"from {source} import {', '.join(names)}"
