"""Words that sqlglot does without, and other engines do not: a text that leaves them out may mean something else."""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot.tokenizer_core import Token, TokenType

from weir.sql.errors import Unplaced

#: Between these and a comma something has to stand, and so after a comma before those.
_BEFORE_ITEM = (TokenType.SELECT, TokenType.DISTINCT, TokenType.COMMA, TokenType.L_PAREN)
_AFTER_ITEM = (TokenType.FROM, TokenType.R_PAREN, TokenType.WHERE)
#: What may stand between a WHEN and its THEN begins none of these.
_PARTS_OF_CASE = (TokenType.WHEN, TokenType.ELSE, TokenType.END)


def check_omissions(tokens: Sequence[Token]) -> None:
    """Refuse a list with an empty place, a WHEN without THEN, and a frame BETWEEN without AND.

    Raises:
        Unplaced: it is such.
    """
    _check_lists(tokens)
    _check_cases(tokens)
    _check_frames(tokens)


def _check_lists(tokens: Sequence[Token]) -> None:
    for number, token in enumerate(tokens):
        if token.token_type is not TokenType.COMMA:
            continue
        if number and tokens[number - 1].token_type in _BEFORE_ITEM:
            raise Unplaced(
                f"syntax: something is missing between {tokens[number - 1].text!r} and ','", token.start
            )
        following = tokens[number + 1] if number + 1 < len(tokens) else None
        if following is None or following.token_type in _AFTER_ITEM:
            before = "" if following is None else f" before {following.text!r}"
            raise Unplaced(f"syntax: something is missing after ','{before}", token.start)


def _check_cases(tokens: Sequence[Token]) -> None:
    #: Of each CASE that is open: the WHEN whose THEN has not come.
    waiting: list[Token | None] = []
    for token in tokens:
        kind = token.token_type
        if kind is TokenType.CASE:
            waiting.append(None)
        elif not waiting:
            continue
        elif kind is TokenType.THEN:
            waiting[-1] = None
        elif kind in _PARTS_OF_CASE:
            if waiting[-1] is not None:
                raise Unplaced("syntax: THEN is missing after WHEN and its condition", waiting[-1].start)
            waiting[-1] = token if kind is TokenType.WHEN else None
            if kind is TokenType.END:
                waiting.pop()


def _check_frames(tokens: Sequence[Token]) -> None:
    for number, token in enumerate(tokens[:-1]):
        following = tokens[number + 1]
        if token.text.upper() not in ("ROWS", "RANGE") or following.token_type is not TokenType.BETWEEN:
            continue
        for later in tokens[number + 2 :]:
            if later.token_type is TokenType.AND:
                break
            if later.token_type in (TokenType.L_PAREN, TokenType.R_PAREN):
                told = f"syntax: AND is missing after {token.text} BETWEEN, as in {token.text} BETWEEN 2 PRECEDING AND "
                raise Unplaced(f"{told}CURRENT ROW", following.start)
