"""A small language with Jinja's syntax: enough for prompts, without access to Python and with bounded work.

Three checks, each an allow-list:

- **Syntax.** `Fence` accepts only the statements and expressions in `ALLOWED`. There are no macros, blocks,
  includes, imports, recursive loops, `namespace` or captured blocks, so a loop cannot pass a value to its
  next iteration, and values cannot double each time.
- **Access.** The only calls after compilation are those of `INTERNAL`, which no name in a template reaches:
  `value.name(…)` becomes `_method` with its own list, `range(…)` becomes `_range`. An attribute is a key of
  a JSON object or a field of `loop`, never a Python attribute. A value is always a JSON value, `loop` or
  undefined.
- **Work.** Every operator, comparison of lists, literal list, slice and iteration is charged to the
  rendering's budget (`rendering.Budgeted`).
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterator
from typing import Any, NoReturn, cast

from jinja2 import TemplateSyntaxError, nodes, pass_context
from jinja2.environment import Template
from jinja2.runtime import Context, LoopContext, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from forebay.engine.prompt import filters
from forebay.engine.prompt.rendering import ITEM, Budgeted, MissingField, NullField, require
from forebay.errors import SettingError, TemplateFailed
from forebay.untrusted_text import escape_special_tokens

MAX_SOURCE_CHARS = 65_536
MAX_NODES = 5000
MAX_INT_BITS = 1024
MAX_NAME_CHARS = 60
MAX_DETAIL_CHARS = 300
NODE_STEP = 8

ALLOWED: tuple[type[nodes.Node], ...] = (
    *(nodes.Template, nodes.Output, nodes.TemplateData, nodes.For, nodes.If, nodes.Assign, nodes.With),
    *(nodes.Name, nodes.Const, nodes.Tuple, nodes.List, nodes.Dict, nodes.Pair, nodes.Keyword),
    *(nodes.CondExpr, nodes.Filter, nodes.Test, nodes.Compare, nodes.Operand, nodes.Concat),
    *(
        nodes.Getattr,
        nodes.Getitem,
        nodes.Slice,
        nodes.Call,
        nodes.And,
        nodes.Or,
        nodes.Not,
        nodes.Neg,
        nodes.Pos,
    ),
    *(nodes.Add, nodes.Sub, nodes.Mul, nodes.Div, nodes.FloorDiv, nodes.Mod, nodes.Pow),
)

OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a / b,
    "//": lambda a, b: a // b,
    "%": lambda a, b: a % b,
    "**": lambda a, b: a**b,
}


class PromptEnvironment(ImmutableSandboxedEnvironment):
    """Compiles templates of the small language. With `escape`, the values of expressions cannot form special
    tokens; the template's own text can.
    """

    intercepted_binops = frozenset(OPERATORS)

    def __init__(self, *, escape: bool = False) -> None:
        self.escape = escape
        super().__init__(
            undefined=MissingField,
            finalize=pass_context(_escaped if escape else filters.as_text),
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,
            cache_size=0,
        )
        filters.install(self)
        self.globals = {}

    def template(self, source: str, what: str) -> Template:
        """Raises `SettingError` with `what`, the line and the problem."""
        if len(source) > MAX_SOURCE_CHARS:
            raise SettingError(f"{what} has {len(source)} characters; a template may have {MAX_SOURCE_CHARS}")
        try:
            parsed = self.parse(source)
            if sum(1 for _ in parsed.find_all(nodes.Node)) > MAX_NODES:
                raise SettingError(f"{what} has more than {MAX_NODES} names, values and operators")
            tree = Fence(what).visit(parsed)
            return Template.from_code(self, self.compile(tree), {})
        except TemplateSyntaxError as error:
            raise SettingError(
                f"{what}, line {error.lineno}: {(error.message or '')[:MAX_DETAIL_CHARS]}"
            ) from None
        except ValueError:
            raise SettingError(f"{what}: a number has too many digits") from None
        except (RecursionError, MemoryError, SyntaxError):
            raise SettingError(f"{what}: the template is nested too deeply") from None

    def getattr(self, obj: Any, attribute: str) -> Any:
        if isinstance(obj, LoopContext) and attribute in filters.LOOP_ATTRIBUTES:
            return getattr(obj, attribute)
        return self.getitem(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        if isinstance(obj, Undefined):
            str(obj)  # raises for a missing field
        # A key of JSON is never a list, and hashing one takes time linear in its size.
        if isinstance(obj, dict | list | tuple | str) and not isinstance(argument, tuple):
            try:
                found = obj[argument]
            except (LookupError, TypeError):
                pass
            else:
                return found if found is not None else NullField(_why_null(obj, argument), obj=obj)
        return self.undefined(_why_missing(obj, argument), obj=obj, name=_brief(argument))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        assert isinstance(context, Budgeted)
        numbers = isinstance(left, int | float) and isinstance(right, int | float)
        if operator == "**":
            _check_power(left, right)
        elif operator == "*" and not numbers:
            _charge_repetition(context, left, right)
        elif operator not in ("+", "*") and not numbers:
            for value in (left, right):
                if isinstance(value, Undefined):
                    str(value)
            raise TemplateFailed(f"{operator!r} takes numbers; it was given {_kinds(left, right)}")
        elif not numbers:
            context.weigh(left)
            context.weigh(right)
        result = OPERATORS[operator](left, right)
        if isinstance(result, int) and result.bit_length() > MAX_INT_BITS:
            raise TemplateFailed(f"{operator!r} gives a number of more than {MAX_INT_BITS} bits")
        if isinstance(result, complex) or (isinstance(result, float) and not math.isfinite(result)):
            raise TemplateFailed(f"{operator!r} gives a number that cannot be written")
        context.weigh(result)
        return result

    def call(
        self,
        context: Context,
        name: Any,
        /,
        *args: Any,
        _loop_vars: object = None,
        _block_vars: object = None,
        **kwargs: Any,
    ) -> Any:
        function = INTERNAL.get(name) if type(name) is str else None
        if function is None:
            raise TemplateFailed("a template cannot call this")
        return function(context, *args, **kwargs)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        return False

    def is_safe_callable(self, obj: Any) -> bool:
        return False


class Fence(NodeTransformer):
    """Rejects nodes that are not in `ALLOWED`, and adds a charge to those that may be expensive."""

    def __init__(self, what: str) -> None:
        self.what = what

    def visit(self, node: nodes.Node, *args: Any, **kwargs: Any) -> Any:
        if type(node) not in ALLOWED:
            self.refuse(node, f"{type(node).__name__.lower()!r} is not available in prompt templates")
        return super().visit(node, *args, **kwargs)

    def refuse(self, node: nodes.Node, problem: str) -> NoReturn:
        raise SettingError(f"{self.what}, line {node.lineno}: {problem}")

    def visit_Name(self, node: nodes.Name) -> nodes.Node:
        if node.name == "self":
            self.refuse(node, "'self' is not available; write event['self'] for a field of that name")
        return node

    def visit_For(self, node: nodes.For) -> nodes.Node:
        if node.recursive:
            self.refuse(node, "recursive loops are not available in prompt templates")
        cost = NODE_STEP * (2 + sum(1 for _ in node.find_all(nodes.Node)))
        cost += sum(len(data.data) for data in node.find_all(nodes.TemplateData))
        self.generic_visit(node)
        node.iter = _applied("turns", node.iter, nodes.Const(cost))
        return node

    def visit_Const(self, node: nodes.Const) -> nodes.Node:
        value = node.value
        if (type(value) is float and not math.isfinite(value)) or (
            type(value) is int and value.bit_length() > MAX_INT_BITS
        ):
            self.refuse(node, f"a number is too large; whole numbers may have {MAX_INT_BITS} bits")
        return node

    def visit_Filter(self, node: nodes.Filter) -> nodes.Node:
        if node.node is None:
            self.refuse(node, "filter blocks are not available in prompt templates")
        if node.name not in filters.FILTERS:
            self.refuse(node, _unknown("filter", node.name, filters.FILTERS))
        self.check_arguments(node)
        return self.generic_visit(node)

    def visit_Test(self, node: nodes.Test) -> nodes.Node:
        if node.name not in filters.TESTS:
            self.refuse(node, _unknown("test", node.name, filters.TESTS))
        self.check_arguments(node)
        self.generic_visit(node)
        node.args = [_applied("compared", argument) for argument in node.args or ()]
        if node.args:
            node.node = _applied("compared", node.node)
        return node

    def visit_Call(self, node: nodes.Call) -> nodes.Node:
        self.check_arguments(node)
        self.generic_visit(node)
        target = node.node
        if isinstance(target, nodes.Getattr):
            if target.attr not in filters.METHODS:
                self.refuse(node, _unknown("method", target.attr, filters.METHODS))
            called = _applied("method", target.node, nodes.Const(target.attr), *node.args)
        elif isinstance(target, nodes.Name) and target.name == "range" and node.args:
            called = _applied("range", *node.args)
        else:
            name = f"{target.name[:MAX_NAME_CHARS]}()" if isinstance(target, nodes.Name) else "this call"
            self.refuse(node, f"{name} is not available in prompt templates; the only function is range(…)")
        called.kwargs = node.kwargs
        return called

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _applied("concat", nodes.List(node.nodes, lineno=node.lineno))

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:
        self.generic_visit(node)
        node.expr = _applied("compared", node.expr)
        for operand in node.ops:
            operand.expr = _applied("compared", operand.expr)
        return node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:
        self.generic_visit(node)
        return _applied("built", node) if isinstance(node.arg, nodes.Slice) else node

    def visit_List(self, node: nodes.List) -> nodes.Node:
        return _applied("built", self.generic_visit(node))

    visit_Dict = visit_List

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:
        self.generic_visit(node)
        return _applied("built", node) if node.ctx == "load" else node

    def check_arguments(self, node: nodes.Call | nodes.Filter | nodes.Test) -> None:
        if node.dyn_args is not None or node.dyn_kwargs is not None:
            self.refuse(node, "*arguments and **arguments are not available in prompt templates")


def _applied(name: str, value: nodes.Node, *args: nodes.Expr) -> nodes.Call:
    return nodes.Call(
        nodes.Const(name), [cast(nodes.Expr, value), *args], [], None, None, lineno=value.lineno
    )


def _unknown(kind: str, name: str, known: Any) -> str:
    name = name[:MAX_NAME_CHARS]
    close = difflib.get_close_matches(name, known, 1)
    fix = f"did you mean {close[0]!r}?" if close else f"there are: {', '.join(sorted(known))}"
    return f"there is no {kind} {name!r} in prompt templates; {fix}"


def _why_missing(obj: Any, argument: Any) -> str:
    if isinstance(obj, dict):
        return f"field {_brief(argument)!r} is missing; the object has {names_of(obj)}"
    if isinstance(argument, str):
        return f"field {argument[:100]!r} is missing; {_kinds(obj)} has no fields"
    return f"item {_brief(argument)} is missing"


def _why_null(obj: Any, argument: Any) -> str:
    return f"{'field' if isinstance(obj, dict) else 'item'} {_brief(argument)!r} is null"


def _brief(value: Any) -> str:
    return str(value)[:100] if isinstance(value, str | int | float) else _kinds(value)


def names_of(mapping: Any) -> str:
    names = [_brief(name)[:40] for _, name in zip(range(12), mapping, strict=False)]
    return ", ".join(names) + (", …" if len(mapping) > len(names) else "") if names else "no fields"


def _kinds(*values: Any) -> str:
    return " and ".join("null" if value is None else type(value).__name__ for value in values)


def _check_power(left: Any, right: Any) -> None:
    for value in (left, right):
        if isinstance(value, Undefined):
            str(value)
        if not isinstance(value, int | float):
            raise TemplateFailed(f"'**' takes numbers; it was given {_kinds(left, right)}")
    if isinstance(left, int) and isinstance(right, int) and left.bit_length() * abs(right) > MAX_INT_BITS:
        raise TemplateFailed(f"'**' gives a number of more than {MAX_INT_BITS} bits")


def _charge_repetition(context: Budgeted, left: Any, right: Any) -> None:
    value, times = (right, left) if isinstance(left, int) else (left, right)
    weight = context.weigh(value) + context.weigh(times)
    if isinstance(times, int):
        context.charge(weight * times)


def _escaped(context: Budgeted, value: Any) -> str:
    text = filters.as_text(context, value)
    context.charge(len(text))
    return escape_special_tokens(text)


def _method(context: Budgeted, value: Any, name: str, *args: Any, **kwargs: Any) -> Any:
    if not isinstance(value, LoopContext):
        require(value)
        context.weigh(value)
    context.weigh(args)
    context.weigh(kwargs)
    result = filters.method(context, value, name, *args, **kwargs)
    if not isinstance(value, LoopContext):
        context.weigh(result)
    return result


def _range(context: Budgeted, *args: Any) -> list[int]:
    numbers = range(*args)
    context.charge(ITEM * len(numbers))
    return list(numbers)


def _turns(context: Budgeted, value: Any, cost: int) -> Iterator[Any]:
    if isinstance(value, Undefined):
        str(value)
    if not isinstance(value, list | tuple | dict | str):
        raise TemplateFailed(f"a loop needs a list; it was given {_kinds(value)}")
    return _charged(context, value, cost)


def _charged(context: Budgeted, value: Any, cost: int) -> Iterator[Any]:
    for item in value:
        context.charge(cost)
        yield item


def _concat(context: Budgeted, parts: list[Any]) -> str:
    texts = [filters.as_text(context, part) for part in parts]
    context.charge(sum(map(len, texts)))
    return "".join(texts)


def _built(context: Budgeted, value: Any) -> Any:
    context.weigh(value)
    return value


def _compared(context: Budgeted, value: Any) -> Any:
    if isinstance(value, str | list | tuple | dict):
        context.weigh(value)
    return value


INTERNAL: dict[str, Callable[..., Any]] = {
    "built": _built,
    "compared": _compared,
    "concat": _concat,
    "method": _method,
    "range": _range,
    "turns": _turns,
}
"""Functions that `Fence` writes calls of. Not filters, as `map` and similar ones accept any filter by
name."""
