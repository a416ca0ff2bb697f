"""Chooses the code to run among the blocks of a text. Runs inside the sandbox: parsing a hostile text can crash.

Of the blocks that compile, the last that defines the name counts; without a name, the last that is a program. A body
without its `def` continues the prompt, whatever its indentation. Definitions that the chosen block needs and another
block has stand before it. Prose around code is dropped. Standard library only; `inside.py` imports it where needed.
"""

from __future__ import annotations

import builtins
import re
from textwrap import dedent, indent

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

MAX_TRIALS = 300  # cuts of a text with prose in it
_ONLY_AST = 0x400
_STARTS = re.compile(r"(?:import|from|def|class|async def|if|for|while|try|with|print)\b|@|#|[A-Za-z_][\w., ]*=")
_DEFINITIONS = ("FunctionDef", "AsyncFunctionDef", "ClassDef")
_BLOCKS = ("If", "Try", "With", "For", "While", "TryStar")


class Block:
    """A text that compiles, and its names."""

    def __init__(self, text: str, tree: Any) -> None:
        lines = text.split("\n")
        for node in tree.body:
            if _is(node, "AnnAssign") and node.value is None:  # `Time: O(1)` is prose; a type alone does nothing
                lines[node.lineno - 1 : node.end_lineno] = [""] * (node.end_lineno - node.lineno + 1)
        tree.body = [node for node in tree.body if not (_is(node, "AnnAssign") and node.value is None)]
        self.text, self.tree = "\n".join(lines), tree
        self.defined = dict(_bound(tree.body))
        nodes = list(_walk(tree))
        stored = {n.id for n in nodes if _is(n, "Name") and not _is(n.ctx, "Load")}
        stored |= {n.arg for n in nodes if _is(n, "arg")} | {n.name for n in nodes if _is(n, *_DEFINITIONS)}
        stored |= {name for n in nodes if _is(n, "Import", "ImportFrom") for name in _imported(n)}
        stored |= {n.name for n in nodes if _is(n, "ExceptHandler", "MatchAs", "MatchStar") and n.name}
        loaded = {n.id for n in nodes if _is(n, "Name")}
        self.missing = loaded - stored - set(dir(builtins)) - {"__file__"}
        calls = [n.func for n in nodes if _is(n, "Call")]
        self.is_program = any(_is(f, "Attribute") or getattr(f, "id", "") in ("print", "exec") for f in calls)


def choose(blocks: list[str], prompt: str, name: str) -> str:
    """The source to compile. Where no block fits, the last one, so that compiling it says what is wrong."""
    first = name.partition(".")[0]
    parsed = [block for text in blocks if (block := parse(text))]
    if not name:
        return _program(parsed) or next(_trimmed(blocks, ""), blocks[-1])
    for block in reversed(parsed):
        if block.defined.get(first):
            return _after(prompt, _joined(block, parsed))
    for source in _trimmed(blocks, first):
        return _after(prompt, source)
    for text in reversed(blocks):
        for body in _bodies(text, _indentation(prompt)) if prompt else ():
            if _grows(prompt, body, first):
                return prompt + body
    for block in reversed(parsed):
        if first in block.defined:  # imported under that name
            return _after(prompt, _joined(block, parsed))
    return _after(prompt, blocks[-1])


def parse(text: str) -> Block | None:
    """A text that compiles as it is or without its indentation."""
    for version in (text, dedent(text)):
        try:
            return Block(version, compile(version, "answer.py", "exec", _ONLY_AST, dont_inherit=True))
        except (SyntaxError, ValueError):
            continue
    return None


def _compiles(text: str) -> bool:
    try:
        compile(text, "answer.py", "exec", dont_inherit=True)
    except (SyntaxError, ValueError):
        return False
    return True


def _after(prompt: str, source: str) -> str:
    """The source after the prompt's code, which may end in the middle of a function."""
    for start in (f"{prompt}\n\n", f"{prompt.rstrip()}\n{_indentation(prompt)}pass\n\n"):
        if _compiles(start + source):
            return start + source
    return source


def _indentation(prompt: str) -> str:
    """That of the body of the prompt's last function."""
    heads = re.findall(r"^([ \t]*)(?:async )?def\b.*?:[^\n]*\n([ \t]+)?", prompt, re.M | re.S)
    head, body = heads[-1] if heads else ("", "")
    return body or head + "    "


def _bodies(text: str, pad: str) -> Iterator[str]:
    """A body without its `def`, as it is and with the prompt's indentation; the first line may have lost its own."""
    text = text.strip("\n")
    for version in (text, text.expandtabs(4)):
        yield version
        yield indent(dedent(version), pad)
        head, _, rest = version.partition("\n")
        yield f"{pad}{head.lstrip()}\n{rest}"
        yield indent(f"{head.lstrip()}\n{dedent(rest)}", pad)


def _grows(prompt: str, body: str, name: str) -> bool:
    """Whether the body becomes part of the prompt's function, rather than code after it."""
    if not _compiles(prompt + body):
        return False
    whole, stub = parse(prompt + body), parse(_after(prompt, ""))
    sizes = [len(node.body) if (node := _function(b, name)) else 0 for b in (stub, whole)]
    return 0 < sizes[0] < sizes[1] or (sizes[1] > 0 and not _compiles(prompt))


def _function(block: Block | None, name: str) -> Any:
    nodes = [n for n in (block.tree.body if block else ()) if _is(n, *_DEFINITIONS) and n.name == name]
    return nodes[-1] if nodes else None


def _joined(block: Block, blocks: list[Block]) -> str:
    """The block after the definitions and imports of other blocks that it lacks."""
    parts, missing = [block.text], set(block.missing)
    for other in reversed(blocks):
        if other is not block and missing & other.defined.keys():
            lines = other.text.split("\n")
            nodes = [n for n in other.tree.body if dict(_bound([n])) and not dict(_bound([n])).keys() & block.defined]
            parts.insert(0, "\n".join("\n".join(lines[_start(n) - 1 : n.end_lineno]) for n in nodes))
            missing = (missing - other.defined.keys()) | other.missing
    return "\n".join(parts)


def _start(node: Any) -> int:
    decorators = getattr(node, "decorator_list", None)
    return int(min([node.lineno, *(d.lineno for d in decorators or ())]))


def _program(blocks: list[Block]) -> str:
    programs = [block for block in blocks if block.is_program]
    defined = {name for block in blocks for name in block.defined}
    for block in reversed(programs):
        if not block.missing & defined:
            return block.text
    for block in [*reversed(programs), *reversed(blocks)]:
        return _joined(block, blocks)
    return ""


def _trimmed(blocks: list[str], name: str) -> Iterator[str]:
    """Code in texts that hold prose too: from a line that begins like code to one before a line that does not."""
    trials = 0
    for text in reversed([text for text in blocks if name in text]):
        lines = dedent(text).split("\n")
        edges = [i for i, line in enumerate(lines) if line[:1].strip()]
        for start in [i for i in edges if _STARTS.match(lines[i])]:
            for end in reversed([i for i in edges if i > start] + [len(lines)]):
                trials += 1
                if trials > MAX_TRIALS:
                    return
                block = parse("\n".join(lines[start:end]))
                if block and (block.defined.get(name) if name else block.is_program):
                    yield block.text


def _bound(nodes: list[Any]) -> Iterator[tuple[str, bool]]:
    """The names that statements of a module bind, and whether by more than an import. Later ones count."""
    for node in nodes:
        if _is(node, *_DEFINITIONS):
            yield node.name, True
        elif _is(node, "Assign", "AnnAssign", "AugAssign"):
            targets = node.targets if _is(node, "Assign") else [node.target]
            yield from ((n.id, True) for target in targets for n in _walk(target) if _is(n, "Name"))
        elif _is(node, "Import", "ImportFrom"):
            yield from ((name, False) for name in _imported(node))
        elif _is(node, *_BLOCKS):
            handlers = [n for handler in getattr(node, "handlers", ()) for n in handler.body]
            yield from _bound([*node.body, *handlers, *getattr(node, "orelse", ()), *getattr(node, "finalbody", ())])


def _imported(node: Any) -> list[str]:
    return [alias.asname or alias.name.partition(".")[0] for alias in node.names]


def _is(node: Any, *names: str) -> bool:
    return type(node).__name__ in names


def _walk(node: Any) -> Iterator[Any]:
    """All nodes of a tree, without the module ast, which takes long to import."""
    pending = [node]
    while pending:
        node = pending.pop()
        yield node
        for field in node._fields:
            child = getattr(node, field, None)
            for item in child if isinstance(child, list) else (child,):
                if hasattr(item, "_fields"):
                    pending.append(item)
