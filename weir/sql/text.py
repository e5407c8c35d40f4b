"""Tokens and syntax trees of characters: the dialect, and statements without their semicolons."""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import exp
from sqlglot.dialects.dialect import Dialect
from sqlglot.errors import SqlglotError
from sqlglot.tokenizer_core import Token, TokenType

from weir.spelling import did_you_mean
from weir.sql.errors import NAME, Place, Unplaced
from weir.sql.omissions import check_omissions
from weir.sql.parts import check_parts
from weir.sql.syntax import refusal
from weir.sql.types import no_type

#: Functions in FROM that divide rows by time.
_BEGINNINGS = ("SELECT", "WITH", "(")
#: Characters of a number, at most.
_NUMBER_MAX = 400
_COMPARISONS = {TokenType.EQ, TokenType.NEQ, TokenType.LT, TokenType.LTE, TokenType.GT, TokenType.GTE}
#: After these another condition begins.
_BETWEEN_COMPARISONS = {
    TokenType.AND,
    TokenType.OR,
    TokenType.COMMA,
    TokenType.SELECT,
    TokenType.FROM,
    TokenType.WHERE,
    TokenType.ON,
    TokenType.HAVING,
    TokenType.QUALIFY,
    TokenType.WHEN,
    TokenType.THEN,
    TokenType.ELSE,
    TokenType.GROUP_BY,
    TokenType.UNION,
}
WINDOW_FUNCTIONS = ("TUMBLE", "HOP", "CUMULATE", "SESSION")


class WeirSql(Dialect):
    """Standard SQL with the few words of sqlglot's own dialect; NULL comes last in every order."""

    NULL_ORDERING = "nulls_are_last"
    #: Messages call functions as the text does: see ``errors.name_of``.
    ORIGINAL_NAME_META_KEY = NAME


_DIALECT = WeirSql()


def tokens_of(place: Place, text: str) -> list[Token]:
    """Return all tokens of a text.

    Raises:
        SqlError: a quote is open, a character belongs to nothing, or a number is too long.
    """
    try:
        tokens = list(_DIALECT.tokenize(text))
    except (SqlglotError, RecursionError) as error:
        start = _open_quote(text)
        what = "a quote is open here, or a comment" if start is not None else "the text has no SQL tokens"
        raise place.error(f"{what}; close it", start or 0) from error
    for token in tokens:
        # Python reads no longer ones, and no column has them.
        if token.token_type is TokenType.NUMBER and len(token.text) > _NUMBER_MAX:
            raise place.error(f"a number of {len(token.text):,} characters is too long", token.start)
    return tokens


def statements_of(tokens: Sequence[Token]) -> list[list[Token]]:
    """The tokens of each statement, without semicolons; empty statements are left out."""
    found: list[list[Token]] = [[]]
    for token in tokens:
        if token.token_type is TokenType.SEMICOLON:
            found.append([])
        else:
            found[-1].append(token)
    return [tokens for tokens in found if tokens]


def parse_query(tokens: Sequence[Token], text: str) -> exp.Expr:
    """The tree of a query.

    Raises:
        Unplaced: it is no SQL, or no query.
    """
    if not tokens:
        raise Unplaced("a query is missing: SELECT ...", None)
    first = tokens[0].text.upper()
    if first not in _BEGINNINGS:
        raise Unplaced(
            f"expected a query, SELECT ..., not {tokens[0].text!r}{did_you_mean(first, _BEGINNINGS)}",
            tokens[0].start,
        )
    _check_comparisons(tokens)
    for token in tokens:
        if token.token_type is TokenType.VAR and token.text.upper() == "MATCH_RECOGNIZE":
            raise Unplaced("MATCH_RECOGNIZE is not there; use a weir.KeyedProcess in Python", token.start)
    parsed = _parsed(_standard_windows(tokens), text, None)
    if not isinstance(parsed, exp.Query):
        raise Unplaced(f"expected a query, SELECT ..., and not {first_words(tokens)}", tokens[0].start)
    # What sqlglot refuses, it tells better.
    check_omissions(tokens)
    check_parts(parsed)
    return parsed


def _check_comparisons(tokens: Sequence[Token]) -> None:
    """Refuse ``a = b IS NULL``: DuckDB and Spark read ``(a = b) IS NULL``, and sqlglot ``a = (b IS NULL)``.

    Raises:
        Unplaced: it is such.
    """
    compares = [False]
    for token in tokens:
        if token.token_type is TokenType.L_PAREN:
            compares.append(False)
        elif token.token_type is TokenType.R_PAREN:
            compares = compares[:-1] or [False]
        elif token.token_type in _COMPARISONS:
            compares[-1] = True
        elif token.token_type in _BETWEEN_COMPARISONS:
            compares[-1] = False
        elif token.token_type is TokenType.IS and compares[-1]:
            raise Unplaced(
                "what is it that IS is of? Put it, or the comparison before it, in parentheses", token.start
            )


def parse_expression(tokens: Sequence[Token], text: str, after: int) -> exp.Expr:
    """The tree of a scalar expression; ``after`` is where it should begin.

    Raises:
        Unplaced: it is none.
    """
    if not tokens:
        raise Unplaced("an expression is missing", after)
    return _parsed(tokens, text, exp.Condition)


def parse_type(tokens: Sequence[Token], text: str, after: int) -> exp.DataType:
    """The tree of a type, such as ``DECIMAL(10, 2)``.

    Raises:
        Unplaced: it is none.
    """
    if not tokens:
        raise Unplaced("the type of the column is missing, such as BIGINT", after)
    try:
        parsed = _parsed(tokens, text, exp.DataType)
    except Unplaced as error:
        if tokens[0].token_type is TokenType.VAR:
            raise Unplaced(no_type(tokens[0].text), tokens[0].start) from error
        raise
    if not isinstance(parsed, exp.DataType):
        raise Unplaced(no_type(first_words(tokens)), tokens[0].start)
    return parsed


def first_words(tokens: Sequence[Token], count: int = 3) -> str:
    """The first words of some tokens, for messages."""
    return " ".join(token.text for token in tokens[:count])


def _parsed(tokens: Sequence[Token], text: str, into: type[exp.Expr] | None) -> exp.Expr:
    start = tokens[0].start
    try:
        parser = _DIALECT.parser()
        found = (
            parser.parse(list(tokens), text) if into is None else parser.parse_into(into, list(tokens), text)
        )
    except SqlglotError as error:
        raise Unplaced(*refusal(error, tokens, text)) from error
    except RecursionError as error:
        raise Unplaced("expressions are nested too deeply; divide them among views", start) from error
    except Exception as error:  # sqlglot raises others for some texts: a user must see one line in any case.
        raise Unplaced(f"this cannot be read as SQL ({type(error).__name__})", start) from error
    if len(found) != 1 or found[0] is None:
        raise Unplaced("this cannot be read as SQL", start)
    tree: exp.Expr = found[0]
    if isinstance(tree, exp.Command):
        raise Unplaced(f"{first_words(tokens)} is not understood", start)
    return tree


def _standard_windows(tokens: Sequence[Token]) -> list[Token]:
    """The same without ``TABLE`` before a name and around a window function, and without ``DESCRIPTOR``.

    ``FROM TABLE(HOP(TABLE bids, DESCRIPTOR(at), ...))`` of the SQL standard is ``FROM HOP(bids, at, ...)``.
    """
    kept: list[Token] = []
    closes: list[bool] = []
    index = 0
    while index < len(tokens):
        token = tokens[index]
        word = token.text.upper()
        following = tokens[index + 1] if index + 1 < len(tokens) else None
        opens = following is not None and following.token_type is TokenType.L_PAREN
        is_name = token.token_type is not TokenType.STRING
        inner = tokens[index + 2].text.upper() if index + 2 < len(tokens) else ""
        if is_name and opens and (word == "DESCRIPTOR" or (word == "TABLE" and inner in WINDOW_FUNCTIONS)):
            closes.append(True)
            index += 2
            continue
        if is_name and word == "TABLE" and kept and kept[-1].token_type is TokenType.L_PAREN:
            index += 1
            continue
        if is_name and opens and word in WINDOW_FUNCTIONS:
            # SESSION is a keyword of other dialects.
            token = Token(TokenType.VAR, token.text, token.line, token.col, token.start, token.end)
        if token.token_type is TokenType.L_PAREN:
            closes.append(False)
        elif token.token_type is TokenType.R_PAREN and closes and closes.pop():
            index += 1
            continue
        kept.append(token)
        index += 1
    return kept


def _open_quote(text: str) -> int | None:
    """Where a quote begins that does not end."""
    for quote in "'\"`":
        if text.count(quote) % 2:
            return text.rfind(quote)
    comment = text.rfind("/*")
    return comment if comment > text.rfind("*/") else None
