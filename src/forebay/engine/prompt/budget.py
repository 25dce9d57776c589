"""How much work one rendering may do, counted and never timed, so that a record always ends the same way.

One unit is about one character handled. Every construct of a template that copies, compares or repeats
charges for it before or as it happens (`sandbox`, `filters`), so time and memory are bounded by the budget
whatever the template and the event hold.
"""

from __future__ import annotations

from typing import Any

from jinja2.environment import Environment
from jinja2.runtime import Context, Undefined

from forebay.engine.prompt.missing import is_null
from forebay.errors import TemplateFailed
from forebay.json_numbers import ExactFloat

NODE = 8
"""Units of any value, however small."""
ITEM = 2 * NODE
"""Units of an item that is about to be made: a short text takes some 80 bytes."""


class Budgeted(Context):
    """A Jinja context that carries what is left of one rendering's budget."""

    def __init__(self, environment: Environment, names: dict[str, Any], work: int) -> None:
        super().__init__(environment, names, None, {})
        self.work = work

    def charge(self, units: int) -> None:
        """Take `units` from the budget; less than none are none. Raises `TemplateFailed` when it is spent."""
        self.work -= max(units, 0)
        if self.work < 0:
            raise TemplateFailed(
                "the template does too much work for one record; shorten its loops or the values it repeats"
            )

    def weigh(self, value: Any) -> int:
        """Charge for all that `value` holds, and return how much that was.

        Stops as soon as the budget is spent, so that lists that hold one list many times cost no more than
        the budget. Raises jinja2's `UndefinedError` where `value` holds a missing field.
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
