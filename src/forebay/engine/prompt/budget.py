"""Limit the work of one rendering by counting, not timing, so that a record always has the same result.

One unit is about one character handled. Every construct that copies, compares or repeats is charged before or
while it runs (`sandbox`, `filters`), so the budget bounds time and memory for any template and event.
"""

from __future__ import annotations

from typing import Any

from jinja2.environment import Environment
from jinja2.runtime import Context, Undefined

from forebay.engine.prompt.missing import is_null
from forebay.errors import TemplateFailed
from forebay.json_numbers import ExactFloat

NODE = 8
ITEM = 2 * NODE
"""Units of an item before it is created: a short text takes some 80 bytes."""


class Budgeted(Context):
    def __init__(self, environment: Environment, names: dict[str, Any], work: int) -> None:
        super().__init__(environment, names, None, {})
        self.work = work

    def charge(self, units: int) -> None:
        """Take `units` from the budget; negative ones count as 0. Raises `TemplateFailed` when it is
        spent."""
        self.work -= max(units, 0)
        if self.work < 0:
            raise TemplateFailed(
                "the template does too much work for one record; shorten its loops or the values it repeats"
            )

    def weigh(self, value: Any) -> int:
        """Charge for everything in `value`, and return how much that was.

        Stops once the budget is spent, so that a list that contains one list many times costs no more than
        the budget. Raises jinja2's `UndefinedError` if `value` contains a missing field.
        """
        before = self.work
        if type(value) is str:
            self.charge(NODE + len(value))
            return before - self.work
        stack = [value]
        while stack:
            item = stack.pop()
            kind = type(item)
            if kind is str:
                self.charge(NODE + len(item))
            elif kind is dict:
                self.charge(NODE * (1 + len(item)))
                stack.extend(item.keys())
                stack.extend(item.values())
            elif kind is list or kind is tuple:
                self.charge(NODE * (1 + len(item)))
                stack.extend(item)
            elif kind is int:
                self.charge(NODE + item.bit_length() // 3)
            elif isinstance(item, Undefined) and not is_null(item):
                str(item)  # raises for a missing field
            elif kind is ExactFloat:
                self.charge(NODE + len(item.text))
            else:
                self.charge(2 * NODE)
        return before - self.work
