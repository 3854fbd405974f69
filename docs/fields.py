"""Reads what a class says about its fields: the text below each of them, which Python itself does not keep."""

from __future__ import annotations

import ast
import inspect


def read_fields(kind: type) -> dict[str, str]:
    """The text below each field of the class, on one line; a field without one is absent."""
    body = ast.parse(inspect.getsource(kind)).body[0]
    assert isinstance(body, ast.ClassDef)
    found: dict[str, str] = {}
    name = ""
    for statement in body.body:
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            name = statement.target.id
        elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant) and name:
            found[name] = " ".join(str(statement.value.value).split())
    return found
