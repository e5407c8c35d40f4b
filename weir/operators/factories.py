"""Makes a step's operator or reader, and says what a factory of the job's author must be where it is no such thing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from weir.author.operator import Operator, SourceReader
from weir.errors import GraphError
from weir.operators.registry import create_operator, create_reader
from weir.plan.graph import Node
from weir.specs import SourceSpec

#: A factory that raises one of these does so at every attempt.
_MISTAKES = (TypeError, NameError, NotImplementedError)


def make_operator(node: Node) -> Operator:
    """The runtime logic of any step but a source.

    Raises:
        GraphError: its factory does not make an operator; the cause is what it raised.
    """
    with _naming_factory(node):
        return create_operator(node.spec)


def make_reader(node: Node) -> SourceReader:
    """The reader of a source.

    Raises:
        GraphError: its factory does not make a source; the cause is what it raised.
    """
    assert isinstance(node.spec, SourceSpec)
    with _naming_factory(node):
        return create_reader(node.spec)


@contextmanager
def _naming_factory(node: Node) -> Iterator[None]:
    wanted = node.spec.factory_kind
    try:
        yield
    except GraphError as error:
        raise GraphError(f"step {node.name!r}: {error}") from error
    except _MISTAKES as error:
        if not wanted:
            raise
        raise GraphError(
            f"step {node.name!r}: its factory raised {type(error).__name__}: {error}; it must be {wanted}"
        ) from error
