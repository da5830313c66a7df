"""A Jinja environment in which a model's chat template can neither escape nor eat the machine.

Templates come with model files, so they are strangers' code. Jinja's immutable sandbox stops attribute
walks and changes to the messages. It does not stop a template that asks for much: measured,
`'%1000000000d' % 1` takes 10.8 s and 1 GB, `9**9**6` never ends, and nested loops run as long as they like.
So whatever makes something large out of something small is bounded here, by counts and not by a clock:
the same messages are always refused or always rendered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sized
from typing import Any

import jinja2.ext
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.filters import make_attrgetter
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment, SandboxedFormatter
from jinja2.utils import Cycler, Joiner, Namespace, pass_context
from jinja2.visitor import NodeTransformer

from trivet.text import template_filters
from trivet.text.template_limits import (
    MAX_STEPS,
    Budget,
    check_arguments,
    check_field,
    check_integer,
    check_text,
)

BUDGET = "_budget"  # a variable of each rendering; templates cannot reach into it, nor replace it (`parent`)

# Methods of strings that pad, which no chat template needs, or that lead out of strings.
_REFUSED_METHODS = {"center", "ljust", "rjust", "zfill", "expandtabs", "translate", "encode", "format_map"}
_BOUNDED_METHODS: dict[str, Callable[..., str]] = {
    "join": lambda separator, parts: template_filters.join(parts, separator),
    "replace": template_filters.replace,
}

_COMPARING_TESTS = (
    *("in", "eq", "==", "equalto", "ne", "!="),
    *("lt", "<", "lessthan", "le", "<=", "gt", ">", "greaterthan", "ge", ">="),
)
_STEPS_PER_MACRO = 10  # a call of one takes about as long as ten loop turns


class TemplateEnvironment(ImmutableSandboxedEnvironment):
    """Block and whitespace rules are those of transformers, whose rendering is the reference."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})
    concat = staticmethod(lambda parts: template_filters.join(parts))  # of {% set %} blocks and macros

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,  # constant folding would compute before anything is counted
            finalize=_finalize,
            extensions=[jinja2.ext.loopcontrols, _GenerationBlock],
        )
        self.filters = {**template_filters.FILTERS, "sum": _sum}
        self.tests = self.tests | {
            name: _bounded_test(self.tests[name], _spend_on_search if name == "in" else _spend_on_comparison)
            for name in _COMPARING_TESTS
        }
        self.globals = {"range": self.globals["range"], "dict": _make_dict, "namespace": _Namespace}
        self.globals |= {"cycler": Cycler, "joiner": Joiner}

    # ---- what a template can reach ----

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if isinstance(obj, Budget | int | float | bytes) or (
            isinstance(obj, str) and attr in _REFUSED_METHODS
        ):
            return False
        return super().is_safe_attribute(obj, attr, value)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """`str.format` with the sandbox's attribute rules and bounded fields."""
        owner = getattr(value, "__self__", None)
        if not isinstance(owner, str) or getattr(value, "__name__", "") != "format":
            return None

        @pass_context
        def bounded_format(context: Context, *args: object, **kwargs: object) -> str:
            _budget(context).spend_on_tree((args, kwargs))
            check_arguments(owner, (*args, *kwargs.values()))
            return _BoundedFormatter(self).vformat(owner, args, kwargs)

        return bounded_format

    # ---- what a template may compute ----

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        # The odd names are the base class's: a template may pass any keyword, `self` included.
        budget = _budget(__context)
        for argument in (*args, *kwargs.values()):
            budget.spend_on(argument)
        if isinstance(__obj, Macro):
            budget.spend(_STEPS_PER_MACRO)
        if isinstance(__obj, LoopContext):
            args = tuple(__self.bounded_loop(__context, items) for items in args)
        owner = getattr(__obj, "__self__", None)
        if isinstance(owner, list | tuple):
            budget.spend_on_tree(owner)
        if isinstance(owner, str):
            budget.spend_on(owner)
            budget.spend_on_tree(args)
            bounded = _BOUNDED_METHODS.get(__obj.__name__)
            if bounded is not None:
                return bounded(owner, *args, **kwargs)
            made = super().call(__context, __obj, *args, **kwargs)
            budget.spend_on_pieces(made)
            return made
        return super().call(__context, __obj, *args, **kwargs)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "%" and isinstance(left, str):
            _budget(context).spend_on_tree(right)
            return template_filters.percent(left, right)
        if isinstance(left, str | list | tuple) or isinstance(right, str | list | tuple):
            _check_sequences(operator, left, right)
        elif isinstance(left, int) and isinstance(right, int):
            bits = left.bit_length() * right if operator == "**" else left.bit_length() + right.bit_length()
            check_integer(bits)
        made = super().call_binop(context, operator, left, right)
        _budget(context).spend_on(made)
        return made

    # ---- what `_Bounds` puts into a template ----

    @pass_context
    def bounded_loop(self, context: Context, items: Any) -> Any:
        try:
            size = len(items)
        except TypeError:
            items = list(items)
            size = len(items)
        _budget(context).spend(size)
        return items

    @pass_context
    def bounded_input(self, context: Context, value: Any) -> Any:
        _budget(context).spend_on(value)
        return value

    @pass_context
    def bounded_visit(self, context: Context, value: Any) -> Any:
        value = _at_hand(value)
        _budget(context).spend_on_items(value)
        return value

    @pass_context
    def bounded_slow_pass(self, context: Context, value: Any) -> Any:
        _budget(context).spend_on_slow_pass(value)
        return value

    @pass_context
    def bounded_output(self, context: Context, value: Any) -> Any:
        value = _at_hand(value)
        _budget(context).spend_on_tree(value)
        return value

    @pass_context
    def bounded_comparison(self, context: Context, value: Any) -> Any:
        """The right side of `==`, `<` ...: no more of the left one is looked at."""
        _spend_on_comparison(context, value)
        return value

    @pass_context
    def bounded_search(self, context: Context, value: Any) -> Any:
        """The right side of `in`, which is walked through where it is no mapping."""
        _spend_on_search(context, value)
        return value

    @pass_context
    def bounded_concat(self, context: Context, *parts: Any) -> str:
        _budget(context).spend_on_tree(parts)
        return template_filters.join(parts)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        template = super()._parse(source, name, filename)
        return _Bounds().visit(template)  # type: ignore[no-any-return]


class _Bounds(NodeTransformer):
    """Rewrites a template so that loops, filters and `~` pass through the environment."""

    def visit_For(self, node: nodes.For) -> nodes.For:  # noqa: N802
        self.generic_visit(node)
        node.iter = _through("bounded_loop", [node.iter], node)  # type: ignore[list-item]  # typed as Node
        return node

    def visit_Filter(self, node: nodes.Filter) -> nodes.Filter:  # noqa: N802
        self.generic_visit(node)
        if node.node is not None:  # None: a {% filter %} block
            node.node = _through(_bound_of(node), [node.node], node)
            if node.name in template_filters.SLOW:
                node.node = _through("bounded_slow_pass", [node.node], node)
        return node

    def visit_Operand(self, node: nodes.Operand) -> nodes.Operand:  # noqa: N802
        self.generic_visit(node)
        method = "bounded_search" if node.op in ("in", "notin") else "bounded_comparison"
        node.expr = _through(method, [node.expr], node)
        return node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Getitem | nodes.Call:  # noqa: N802
        self.generic_visit(node)
        return _through("bounded_input", [node], node) if isinstance(node.arg, nodes.Slice) else node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Call:  # noqa: N802
        self.generic_visit(node)
        return _through("bounded_concat", node.nodes, node)


def _bound_of(node: nodes.Filter) -> str:
    """`map` with the name of a filter may write out each item, or sort it."""
    maps = node.name == "map" and (node.args or node.dyn_args is not None)
    if maps or node.name in template_filters.WRITING:
        return "bounded_output"
    return "bounded_visit" if node.name in template_filters.VISITING else "bounded_input"


def _at_hand(value: Any) -> Any:
    """What a filter yields one by one, as a list: else its items would be seen by nobody that counts."""
    return list(value) if isinstance(value, Iterator) and not isinstance(value, LoopContext) else value


def _through(method: str, arguments: list[nodes.Expr], node: nodes.Node) -> nodes.Call:
    function = nodes.EnvironmentAttribute(method)
    return nodes.Call(function, arguments, [], None, None, lineno=node.lineno)


@pass_context
def _finalize(context: Context, value: Any) -> Any:
    """Sees every `{{ value }}`."""
    if not isinstance(value, str):
        _budget(context).spend_on_tree(value)
    return value


def _budget(context: Context) -> Budget:
    budget: Budget = context.parent[BUDGET]
    return budget


def _spend_on_comparison(context: Context, value: Any) -> None:
    if isinstance(value, str):
        _budget(context).spend_on(value)
    else:
        _budget(context).spend_on_tree(value)


def _spend_on_search(context: Context, value: Any) -> None:
    if not isinstance(value, Mapping):
        _spend_on_comparison(context, value)


def _bounded_test(test: Any, spend: Callable[[Context, Any], None]) -> Any:
    """A test as `is in` or `select('in', ...)` calls it: once an item, past the operators' bounds."""

    @pass_context
    def bounded(context: Context, value: Any, other: Any) -> Any:
        spend(context, other)
        return test(value, other)

    return bounded


@pass_context
def _sum(context: Context, items: Any, attribute: str | int | None = None, start: Any = 0) -> Any:
    """Jinja's, for numbers: of lists each addition would copy all that came before."""
    values = list(map(make_attrgetter(context.environment, attribute), items)) if attribute else list(items)
    if not all(isinstance(value, int | float) for value in (start, *values)):
        raise TypeError("sum is of numbers only")
    _budget(context).spend(len(values))
    return sum(values, start)


def _check_sequences(operator: str, left: Any, right: Any) -> None:
    """Of `+` and `*` on texts and lists; other types fail by themselves."""
    if operator == "*":
        sequence, times = (right, left) if isinstance(left, int) else (left, right)
        size = len(sequence) * times if isinstance(times, int) else 0
    else:
        size = len(left) + len(right) if isinstance(left, Sized) and isinstance(right, Sized) else 0
    if isinstance(left, str) or isinstance(right, str):
        check_text(size)
    elif size > MAX_STEPS:
        raise SecurityError(f"it makes a list of {size} items; {MAX_STEPS} are allowed")


def _make_dict(*args: Any, **kwargs: Any) -> dict[Any, Any]:
    """In place of the class, whose attributes lead on."""
    return dict(*args, **kwargs)


class _Namespace(Namespace):
    """Jinja looks up its own marks (`_...`) on objects, so a template must not set them."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        for name in dict(*args[1:], **kwargs):
            _check_name(name)
        Namespace.__init__(*args, **kwargs)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)

    def __repr__(self) -> str:
        return "<namespace>"


def _check_name(name: object) -> None:
    if str(name).startswith("_"):
        raise SecurityError(
            f"a namespace cannot hold {name!r}: names that start with an underscore are Jinja's"
        )


class _GenerationBlock(jinja2.ext.Extension):
    """`{% generation %}` marks the assistant's text for training; here it is just its content."""

    tags = {"generation"}  # noqa: RUF012  # how Jinja declares it

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _BoundedFormatter(SandboxedFormatter):
    def format_field(self, value: Any, format_spec: str) -> str:
        check_field(format_spec)
        formatted: str = super().format_field(value, format_spec)
        return formatted
