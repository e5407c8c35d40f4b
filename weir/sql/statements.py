"""Statements: CREATE SOURCE, TABLE, VIEW, SINK and FUNCTION, INSERT INTO and EXPLAIN, taken apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from sqlglot import exp
from sqlglot.tokenizer_core import Token, TokenType

from weir.spelling import did_you_mean
from weir.sql.context import Emit
from weir.sql.errors import Unplaced
from weir.sql.syntax import meant
from weir.sql.text import first_words, parse_expression, parse_query, parse_type

_BEGINNINGS = (
    "CREATE SOURCE",
    "CREATE TABLE",
    "CREATE VIEW",
    "CREATE SINK",
    "CREATE FUNCTION",
    "INSERT INTO",
)


@dataclass(frozen=True)
class Option:
    """A setting in WITH.

    Attributes:
        name: in lower case.
        value: its text.
        start: its place.
    """

    name: str
    value: str
    start: int


@dataclass(frozen=True)
class ColumnDefinition:
    """A column of CREATE SOURCE or CREATE TABLE."""

    name: str
    type: exp.DataType
    is_nullable: bool
    start: int


@dataclass(frozen=True)
class Watermark:
    """``WATERMARK FOR column AS column - INTERVAL '2' SECOND``."""

    column: str
    expression: exp.Expr
    start: int


@dataclass
class Statement:
    """Statement, taken apart.

    Attributes:
        kind: SOURCE, TABLE, VIEW, SINK, FUNCTION or INSERT.
        name: what it makes, or writes to.
        start: the place of the name.
        columns: of a source or a table.
        watermark: of a source.
        options: of WITH.
        query: of a view, a sink or INSERT; None: a sink that INSERT INTO writes to.
        emit: when results are told.
        target: of a function: ``module:function``,
        target_start: its place,
        returns: and what it returns; None: the function says it.
    """

    kind: str
    name: str
    start: int
    columns: list[ColumnDefinition] = field(default_factory=list)
    watermark: Watermark | None = None
    options: list[Option] = field(default_factory=list)
    query: exp.Expr | None = None
    emit: Emit | None = None
    target: str = ""
    target_start: int = 0
    returns: exp.DataType | None = None


class _Reader:
    """Goes through the tokens of a statement."""

    def __init__(self, tokens: Sequence[Token], text: str) -> None:
        self.tokens, self.text, self.at = list(tokens), text, 0

    @property
    def word(self) -> str:
        return self.tokens[self.at].text.upper() if self.at < len(self.tokens) else ""

    @property
    def start(self) -> int:
        return int(self.tokens[self.at].start) if self.at < len(self.tokens) else int(self.tokens[-1].end)

    def words_after(self, word: str) -> list[str]:
        """The word after the next one, if that is this."""
        return (
            [each.text.upper() for each in self.tokens[self.at + 1 : self.at + 2]]
            if self.word == word
            else []
        )

    def take(self, *words: str) -> bool:
        for number, word in enumerate(words):
            place = self.at + number
            if place >= len(self.tokens) or self.tokens[place].text.upper() != word:
                return False
            if self.tokens[place].token_type is TokenType.STRING:
                return False
        self.at += len(words)
        return True

    def need(self, word: str, after: str) -> None:
        if not self.take(word):
            found = f", not {self.tokens[self.at].text!r}" if self.at < len(self.tokens) else ""
            near = did_you_mean(self.word, [word]) if self.at < len(self.tokens) else ""
            raise Unplaced(
                f"expected {word} after {after}{found}{near if 'did you mean' in near else ''}", self.start
            )

    def name(self, what: str) -> tuple[str, int]:
        if self.at >= len(self.tokens) or not (
            self.word.replace("_", "a").isalnum() or self.tokens[self.at].text
        ):
            raise Unplaced(f"the name of {what} is missing", self.start)
        token = self.tokens[self.at]
        is_quoted = self.text[token.start : token.start + 1] in '"`'
        if token.token_type in (TokenType.STRING, TokenType.NUMBER) or not (
            is_quoted or token.text.replace("_", "a").isalnum()
        ):
            raise Unplaced(f"{token.text!r} is no name of {what}", token.start)
        self.at += 1
        return token.text, int(token.start)

    def enclosed(self, after: str) -> list[list[Token]]:
        """What is in parentheses, divided by commas."""
        self.need("(", after)
        parts: list[list[Token]] = [[]]
        depth = 0
        while self.at < len(self.tokens):
            token = self.tokens[self.at]
            self.at += 1
            if token.token_type is TokenType.R_PAREN and not depth:
                return [part for part in parts if part]
            if token.token_type in (TokenType.L_PAREN, TokenType.LT):
                depth += 1
            elif token.token_type in (TokenType.R_PAREN, TokenType.GT):
                depth -= 1
            if token.token_type is TokenType.COMMA and not depth:
                parts.append([])
            else:
                parts[-1].append(token)
        raise Unplaced(f"the parenthesis after {after} is not closed", self.start)


def statement_of(tokens: Sequence[Token], text: str) -> Statement:
    """Take a statement apart.

    Raises:
        Unplaced: it is none of those that are there.
    """
    reader = _Reader(tokens, text)
    if reader.take("INSERT", "INTO"):
        name, start = reader.name("a sink")
        if reader.word == "(" and reader.words_after("(")[:1] not in (["SELECT"], ["WITH"], ["("]):
            raise Unplaced(
                "INSERT INTO takes no list of columns; SELECT names them, with AS where they are others",
                reader.start,
            )
        return _with_query(Statement("INSERT", name, start), reader)
    if not reader.take("CREATE"):
        return _refuse(tokens)
    reader.take("TEMPORARY")
    if reader.word == "OR":
        raise Unplaced("CREATE OR REPLACE is not there; a text declares each name once", reader.start)
    for kind in ("SOURCE", "TABLE", "VIEW", "SINK"):
        if reader.take(kind):
            if reader.word == "IF":
                raise Unplaced("IF NOT EXISTS is not there; a text declares each name once", reader.start)
            name, start = reader.name(f"the {kind.lower()}")
            return _created(Statement(kind, name, start), reader)
    if reader.take("FUNCTION"):
        name, start = reader.name("the function")
        return _function(Statement("FUNCTION", name, start), reader)
    return _refuse(tokens)


def _function(statement: Statement, reader: _Reader) -> Statement:
    """``CREATE FUNCTION score RETURNS DOUBLE AS 'my_job:score'``."""
    if reader.word == "(":
        raise Unplaced(
            "CREATE FUNCTION takes no list of arguments; the function of Python has them", reader.start
        )
    if reader.take("RETURNS"):
        words = [token.text.upper() for token in reader.tokens]
        stop = words.index("AS", reader.at) if "AS" in words[reader.at :] else len(words)
        statement.returns = parse_type(reader.tokens[reader.at : stop], reader.text, reader.start)
        reader.at = stop
    reader.need("AS", f"CREATE FUNCTION {statement.name}")
    rest = reader.tokens[reader.at :]
    if len(rest) != 1 or rest[0].token_type is not TokenType.STRING:
        raise Unplaced("a function is 'module:function', such as 'my_job:score', in quotes", reader.start)
    statement.target, statement.target_start = rest[0].text, int(rest[0].start)
    return statement


def _refuse(tokens: Sequence[Token]) -> Statement:
    found = first_words(tokens, 2)
    if tokens[0].text.upper() in ("SELECT", "WITH"):
        raise Unplaced(
            "a query alone writes nothing; begin with CREATE SINK name WITH (...) AS", tokens[0].start
        )
    near = meant(tokens[0].text, ("SELECT", "WITH", "EXPLAIN"))
    if near:
        raise Unplaced(f"there is no statement {found}{near}", tokens[0].start)
    if tokens[0].text.upper() == "EXPLAIN":
        raise Unplaced(
            "EXPLAIN is of the prompt (weir sql); weir plan FILE shows what a file becomes", tokens[0].start
        )
    raise Unplaced(
        f"there is no statement {found}{did_you_mean(found.upper(), _BEGINNINGS)}", tokens[0].start
    )


def _created(statement: Statement, reader: _Reader) -> Statement:
    if statement.kind in ("SOURCE", "TABLE") and reader.word == "(":
        for part in reader.enclosed("the name"):
            if part[0].text.upper() == "WATERMARK":
                if statement.kind == "TABLE":
                    raise Unplaced(
                        "a table is looked up as it is, without a WATERMARK; CREATE SOURCE makes a stream",
                        part[0].start,
                    )
                statement.watermark = _watermark(part, reader.text)
            else:
                statement.columns.append(_column(part, reader.text))
    if reader.take("WITH"):
        statement.options = [_option(part) for part in reader.enclosed("WITH")]
    if statement.kind in ("SOURCE", "TABLE") or (
        statement.kind == "SINK" and reader.at == len(reader.tokens)
    ):
        if reader.at < len(reader.tokens):
            near = meant(reader.word, ("WITH", "AS"))
            raise Unplaced(
                f"{reader.tokens[reader.at].text!r} does not belong here{near or '; a ; ends a statement'}",
                reader.start,
            )
        return statement
    reader.need("AS", f"CREATE {statement.kind} {statement.name}")
    return _with_query(statement, reader)


def _with_query(statement: Statement, reader: _Reader) -> Statement:
    tokens = reader.tokens[reader.at :]
    words = [token.text.upper() for token in tokens]
    if words[-4:] == ["EMIT", "ON", "WINDOW", "CLOSE"]:
        statement.emit, tokens = "close", tokens[:-4]
    elif words[-2:] == ["EMIT", "CHANGES"]:
        statement.emit, tokens = "changes", tokens[:-2]
    elif "EMIT" in words[-4:]:
        place = len(words) - 1 - words[::-1].index("EMIT")
        raise Unplaced("EMIT is EMIT ON WINDOW CLOSE or EMIT CHANGES", tokens[place].start)
    if not tokens:
        raise Unplaced("a query is missing: SELECT ...", reader.start)
    statement.query = parse_query(tokens, reader.text)
    return statement


def _column(part: list[Token], text: str) -> ColumnDefinition:
    reader = _Reader(part, text)
    if part[0].text.upper() in ("PRIMARY KEY", "FOREIGN KEY", "CONSTRAINT", "UNIQUE"):
        raise Unplaced(
            f"{part[0].text.upper()} is not there; the join says by which columns rows are found",
            reader.start,
        )
    name, start = reader.name("a column")
    rest = part[1:]
    words = [token.text.upper() for token in rest]
    is_nullable = True
    if words[-2:] == ["NOT", "NULL"]:
        is_nullable, rest = False, rest[:-2]
    elif words[-1:] == ["NULL"]:
        rest = rest[:-1]
    if words[:1] == ["FOR"] and (near := meant(name, ("WATERMARK",))):
        raise Unplaced(f"{name} FOR is no column{near}", start)
    for word in ("PRIMARY KEY", "PRIMARY", "REFERENCES", "DEFAULT", "AS", "METADATA", "UNIQUE", "CHECK"):
        if word in words:
            raise Unplaced(
                f"column {name!r}: {word} is not there; a column has a name, a type and NOT NULL", start
            )
    return ColumnDefinition(name, parse_type(rest, text, start), is_nullable, start)


def _watermark(part: list[Token], text: str) -> Watermark:
    reader = _Reader(part, text)
    reader.at = 1
    reader.need("FOR", "WATERMARK")
    name, start = reader.name("the time column")
    reader.need("AS", f"WATERMARK FOR {name}")
    return Watermark(name, parse_expression(part[reader.at :], text, reader.start), start)


def _option(part: list[Token]) -> Option:
    start = int(part[0].start)
    for number, token in enumerate(part):
        if token.token_type is TokenType.EQ:
            name = "".join(each.text for each in part[:number]).lower()
            value = "".join(each.text for each in part[number + 1 :])
            if not name or number + 1 == len(part):
                break
            if part[number + 1].token_type is TokenType.STRING and number + 2 < len(part):
                following = part[number + 2]
                raise Unplaced(f"a comma is missing before {following.text!r}", following.start)
            return Option(name, value, start)
    raise Unplaced("a setting in WITH is name = 'value'", start)
