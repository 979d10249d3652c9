"""`headrace cluster ADDRESS`: show the nodes of a Ray cluster, and where actors would be placed."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Annotated

import tyro
from tyro.conf import FlagCreatePairsOff, Positional

from headrace.cli import pairs
from headrace.core.terminal import say
from headrace.core.text import plain_table

DESCRIPTION = "Show the nodes of a Ray cluster, their free cores, and where actors would be placed: without training."
ADDRESS = "of its head, such as 10.0.0.1:6379; or auto, for the cluster that this machine is in"
HEADINGS = ("node", "address", "cores", "free", "GPUs", "actors placed", "object store")


@dataclass(frozen=True)
class Cluster:
    """Settings of a cluster: its address and its number of actors."""

    address: Annotated[str, Positional, tyro.conf.arg(metavar="ADDRESS", help=ADDRESS)]
    actors: int | None = None  # number of actors to place; None: one for each free core
    cluster_open: FlagCreatePairsOff[bool] = False  # allow a cluster without a token


def main(arguments: list[str]) -> None:
    """Print a table."""
    options = pairs.cli(Cluster, "cluster", DESCRIPTION, args=arguments)
    if options.address == "local":
        raise ValueError("a local cluster exists only during a training: give the address of one that runs, or auto")
    from headrace.parallel.cluster.connection import Connection, Node, Settings

    connection = Connection(Settings(options.address, options.cluster_open))
    try:
        nodes = connection.nodes()
    finally:
        connection.close()
    free = sum(node.free for node in nodes)
    actors = free if options.actors is None else options.actors
    places = spread([node.free for node in nodes], actors)

    def row(node: Node, count: int) -> tuple[str, ...]:
        numbers = (node.cores, node.free, node.gpus, count)
        return node.id[:8], node.address, *map(str, numbers), f"{node.store / 1e6:,.0f} MB"

    say(plain_table([HEADINGS, *map(row, nodes, places)]))
    number = f"{len(nodes)} {'node' if len(nodes) == 1 else 'nodes'}"
    say(f"{number}, this machine's first: {free} of {sum(node.cores for node in nodes)} cores free")
    if not free:
        say("no actor can start: add a node (`ray start --address HOST:PORT` there), or wait for a core that is free")
    elif actors > free:
        say(f"{actors - free} of {actors} actors would wait for a core; until then the others do their work too")


def spread(free: list[int], actors: int) -> list[int]:
    """Number of actors on each node, given its free cores: evenly, as far as there is room."""
    placed: Counter[int] = Counter()
    for _ in range(min(actors, sum(free))):
        open_nodes = [node for node, cores in enumerate(free) if placed[node] < cores]
        placed[min(open_nodes, key=lambda node: placed[node])] += 1
    return [placed[node] for node in range(len(free))]
