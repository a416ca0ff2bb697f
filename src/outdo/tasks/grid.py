"""A grid world in text: a map with walls and a goal, perhaps a key and a door that it opens.

The rules are here, and a player of them; `envs/grid.py` plays them with a model. Every map has a solution, found by
breadth-first search. The out-of-distribution split has a map that is larger by two in both directions. Demonstrations
know the shortest way and still wander off it at times.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

from outdo.errors import TaskError
from outdo.seeds import seed_of
from outdo.tasks.splits import belongs
from outdo.types import Message, Prompt

MOVES: Mapping[str, tuple[int, int]] = {"up": (-1, 0), "down": (1, 0), "left": (0, -1), "right": (0, 1)}
PLAYER, GOAL, WALL, KEY, DOOR, FLOOR, HIDDEN = "AG#KD.?"
ASK = (
    "You are A on this map. # is a wall and G the goal{legend}. Answer with {move}: up, down, left or right. You have "
    "{moves} moves.\n{map}"
)
LEGEND = ", K a key, and D a door that needs the key"
MAX_MISSES = 10_000  # problems in a row that have no solution or belong to other splits, before this split is refused
Cell = tuple[int, int]
Place = tuple[Cell, bool]  # where the player is, and whether it has the key


@dataclass(frozen=True)
class World:
    """A map, and where the player is on it."""

    rows: tuple[str, ...]  # without the player
    at: Cell
    moves: int  # that remain
    has_key: bool = False
    view: int = 0  # how far the player sees; 0: everything
    moves_per_turn: int = 1

    @property
    def solved(self) -> bool:
        return self.rows[self.at[0]][self.at[1]] == GOAL

    @property
    def done(self) -> bool:
        return self.solved or self.moves < 1


def prompts(
    split: str,
    seed: int,
    width: int = 5,
    height: int = 5,
    walls: float = 0.3,
    door: bool = False,
    slack: float = 2.0,
    view: int = 0,
    moves_per_turn: int = 1,
    ask: str = ASK,
) -> Iterator[Prompt]:
    """Endless maps. `walls` is their share of the cells; with a `door` the goal is behind it, and the key is not.

    A player may take `slack` times as many moves as the shortest way has, up to `moves_per_turn` in one message, and
    sees the cells that are at most `view` rows and columns away (0: all of them).
    """
    if min(width, height) < 2 or width * height < 6 or not 0 <= walls <= 0.6 or slack < 1:
        size = f"width={width} and height={height} must be 2 or more, with 6 cells or more"
        raise TaskError(f"grid: {size}, walls={walls} from 0 to 0.6, and slack={slack} 1 or more")
    if moves_per_turn < 1 or view < 0 or "{map}" not in ask:
        raise TaskError(
            f"grid: moves_per_turn={moves_per_turn} must be 1 or more, view={view} 0 or more, and ask contain {{map}}"
        )
    larger = 2 * (split == "ood")
    rng = random.Random(seed_of("grid", split, seed))
    missed = 0
    while missed < MAX_MISSES:
        missed += 1
        world = _draw(rng, width + larger, height + larger, walls, door)
        way = shortest_way(world) if world else None
        if world and way and len(way) >= (width + height + 2 * larger) // 2 and belongs(_drawn(world), split):
            missed = 0
            world = replace(world, moves=int(slack * len(way)), view=view, moves_per_turn=moves_per_turn)
            yield _prompt(world, " ".join(way), ask)
    raise TaskError(f"grid: too few maps of {width} by {height} with walls={walls}: split {split!r} is empty")


def _prompt(world: World, way: str, ask: str) -> Prompt:
    move = _allowed(world)
    legend = LEGEND if any(DOOR in row for row in world.rows) else ""
    text = ask.replace("{legend}", legend).replace("{move}", move).replace("{moves}", str(world.moves))
    text = text.replace("{map}", shown(world))
    settings = {"max_moves": world.moves, "view": world.view, "moves_per_turn": world.moves_per_turn}
    return Prompt(_drawn(world), ({"role": "user", "content": text},), way, {"map": _drawn(world), **settings})


def _allowed(world: World) -> str:
    return "one move" if world.moves_per_turn == 1 else f"one to {world.moves_per_turn} moves"


def start(prompt: Prompt) -> World:
    """The world of a prompt. Raises TaskError where it lacks a column."""
    meta = prompt.meta
    try:
        lines = str(meta["map"]).split("\n")
        (at,) = [(i, j) for i, line in enumerate(lines) for j, sign in enumerate(line) if sign == PLAYER]
        rows = tuple(line.replace(PLAYER, FLOOR) for line in lines)
        limits = int(meta["max_moves"]), False, int(meta.get("view", 0)), int(meta.get("moves_per_turn", 1))
    except (KeyError, TypeError, ValueError):
        columns = ", ".join(meta) or "none"
        raise TaskError(
            f"grid: a prompt needs the columns map, with one {PLAYER} on it, and max_moves; prompt {prompt.id!r:.60} "
            f"has {columns}"
        ) from None
    if len({len(row) for row in rows}) != 1 or set("".join(rows)) - set(GOAL + WALL + KEY + DOOR + FLOOR):
        raise TaskError(f"grid: the map of prompt {prompt.id!r:.60} has unequal lines, or other signs than AG#KD.")
    return World(rows, at, *limits)


def moved(world: World, move: str) -> World:
    """One move on; the player stays where a wall, the edge or a locked door is."""
    (at, has_key) = _next(world, (world.at, world.has_key), move) or (world.at, world.has_key)
    return replace(world, at=at, has_key=has_key, moves=world.moves - 1)


def after(world: World, moves: Sequence[str]) -> tuple[World, str]:
    """The world after the moves of a message, and what the player is shown: nothing once it is over. A message without
    a move, or with too many, costs one."""
    notes = []
    if not 1 <= len(moves) <= world.moves_per_turn:
        notes, world = [f"write {_allowed(world)}: up, down, left or right"], replace(world, moves=world.moves - 1)
        moves = ()
    for move in moves:
        before = world
        world = moved(world, move)
        if world.at == before.at:
            notes.append(f"{move}: blocked")
        if world.has_key and not before.has_key:
            notes.append("you have the key")
        if world.done:
            break
    return world, "" if world.done else "\n".join([*notes, f"{world.moves} moves left", shown(world)])


def shown(world: World) -> str:
    """What the player sees."""
    (y, x), far = world.at, world.view or max(len(world.rows), len(world.rows[0]))
    seen = replace(world, rows=_without_key(world.rows)) if world.has_key else world
    lines = [
        "".join(sign if abs(i - y) <= far and abs(j - x) <= far else HIDDEN for j, sign in enumerate(line))
        for i, line in enumerate(_drawn(seen).split("\n"))
    ]
    return "\n".join(lines)


def shortest_way(world: World) -> list[str] | None:
    """The moves to the goal from here; None where there is no way."""
    first: Place = (world.at, world.has_key)
    came: dict[Place, tuple[Place, str] | None] = {first: None}
    queue = deque([first])
    while queue:
        place = queue.popleft()
        if world.rows[place[0][0]][place[0][1]] == GOAL:
            way = []
            while step := came[place]:
                place, move = step
                way.append(move)
            return way[::-1]
        for move in MOVES:
            if (target := _next(world, place, move)) and target not in came:
                came[target] = place, move
                queue.append(target)
    return None


def solution(prompt: Prompt) -> list[Message]:
    """The shortest way."""
    return _played(prompt, lambda world: (shortest_way(world) or [])[: world.moves_per_turn])


def teacher(prompt: Prompt, rng: random.Random, wanders: float = 0.4) -> list[Message]:
    """A demonstration: the shortest way from wherever it is, but with probability `wanders` a random move."""

    def choose(world: World) -> list[str]:
        way = shortest_way(world) or []
        return [rng.choice(list(MOVES))] if rng.random() < wanders else way[: world.moves_per_turn]

    return _played(prompt, choose)


def _played(prompt: Prompt, choose: Callable[[World], Sequence[str]]) -> list[Message]:
    world, messages = start(prompt), list[Message]()
    while not world.done:
        moves = choose(world)
        messages.append({"role": "assistant", "content": " ".join(moves)})
        world, seen = after(world, moves)
        if seen:
            messages.append({"role": "user", "content": seen})
    return messages


def _next(world: World, place: Place, move: str) -> Place | None:
    """Where a move leads; None where it is blocked."""
    (y, x), has_key = place
    y, x = y + MOVES[move][0], x + MOVES[move][1]
    if not (0 <= y < len(world.rows) and 0 <= x < len(world.rows[0])):
        return None
    sign = world.rows[y][x]
    if sign == WALL or (sign == DOOR and not has_key):
        return None
    return (y, x), has_key or sign == KEY


def _draw(rng: random.Random, width: int, height: int, walls: float, door: bool) -> World | None:
    """A random map; None where it cannot have the door between the player and the goal."""
    cells = list(product(range(height), range(width)))
    at, goal, *others = rng.sample(cells, len(cells))
    signs = dict.fromkeys(cells, FLOOR) | dict.fromkeys(others[: round(walls * len(cells))], WALL) | {goal: GOAL}
    world = _world(signs, width, at)
    if not door:
        return world
    way = _cells_of(world, shortest_way(world) or [])[:-1]
    rng.shuffle(way)
    for cell in way:
        locked = _world({**signs, cell: DOOR}, width, at)
        near = sorted(_reached(locked) - {at})
        if goal not in near and near:
            return _world({**signs, cell: DOOR, rng.choice(near): KEY}, width, at)
    return None


def _world(signs: Mapping[Cell, str], width: int, at: Cell) -> World:
    text = "".join(signs[cell] for cell in sorted(signs))
    return World(tuple(text[i : i + width] for i in range(0, len(text), width)), at, 0)


def _cells_of(world: World, way: Sequence[str]) -> list[Cell]:
    """The cells that a way leads over, the last one included."""
    cells = [world.at]
    for move in way:
        cells.append((cells[-1][0] + MOVES[move][0], cells[-1][1] + MOVES[move][1]))
    return cells[1:]


def _reached(world: World) -> set[Cell]:
    """The cells that can be reached without a key."""
    seen, queue = {world.at}, [world.at]
    while queue:
        place = queue.pop(), False
        for target, _ in filter(None, (_next(world, place, move) for move in MOVES)):
            if target not in seen:
                seen.add(target)
                queue.append(target)
    return seen


def _drawn(world: World) -> str:
    """The map with the player on it."""
    (y, x), lines = world.at, list(world.rows)
    lines[y] = lines[y][:x] + PLAYER + lines[y][x + 1 :]
    return "\n".join(lines)


def _without_key(rows: Sequence[str]) -> tuple[str, ...]:
    return tuple(row.replace(KEY, FLOOR) for row in rows)
