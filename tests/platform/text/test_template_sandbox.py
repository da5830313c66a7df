from __future__ import annotations

import resource

import pytest

from trivet.errors import RequestError
from trivet.text.chat_template import ChatTemplate

MESSAGES = [{"role": "user", "content": "hi"}]
DOUBLE = "{% set ns = namespace(x='ab') %}{% for i in range(60) %}STEP{% endfor %}"
NEST = "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}"

# An unsafe attribute is undefined: it shows nothing, and using it fails.
HIDDEN = [
    "{{ raise_exception.__globals__ }}",
    "{{ strftime_now.__self__ }}",
    "{{ range.__class__ }}",
    "{{ (1).__class__ }}",
    "{{ _budget.steps }}",
]
ESCAPES = [
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ ''['__class__']['__base__'] }}",
    "{{ messages.__init__.__globals__ }}",
    "{{ raise_exception.__globals__.jinja2 }}",
    "{{ strftime_now.__self__._templates }}",
    "{{ cycler.__init__.__globals__.os }}",
    "{{ namespace.__init__.__globals__ }}",
    "{{ self.__init__.__globals__ }}",
    "{{ ('a' | attr('__class__')).__mro__ }}",
    "{{ (messages | map(attribute='__class__') | list)[0].__mro__ }}",
    "{{ '{0.__class__.__mro__}'.format('a') }}",
    "{{ '{0.__class__}' | format('a') }}{{ ''.__class__ }}",
    "{{ _budget.spend(-1000000) }}",
    "{{ dict.mro() }}",
    "{{ (1).__class__.__base__ }}",
    "{{ lipsum() }}",
    "{% set ns = namespace() %}{% set ns.__class__ = 'x' %}",
    "{{ namespace(_x=1) }}",
]
CHANGES = [
    "{{ messages.append(1) }}",
    "{{ messages[0].update(role='system') }}",
    "{{ messages[0].pop('role') }}",
    "{{ messages.clear() }}",
]
EXPLOSIONS = [
    "{{ 'a' * 10**8 }}",
    "{{ 10**8 * 'a' }}",
    "{{ [1] * 10**8 }}",
    "{{ (1,) * 10**8 }}",
    "{{ '%1000000000d' % 1 }}",
    "{{ '%.1000000000f' % 1 }}",
    "{{ '%*d' % (1000000000, 1) }}",
    "{{ '%(a)1000000000s' % {'a': 1} }}",
    "{{ '%1000000000d' | format(1) }}",
    "{{ '{:1000000000}'.format(1) }}",
    "{{ '{:{w}}'.format(1, w=1000000000) }}",
    "{{ '{:1000000000}'.format_map({}) }}",
    "{{ 9 ** 99999999 }}",
    "{{ 9 ** 9 ** 9 ** 9 ** 9 }}",
    "{{ (2 ** 4000) * (2 ** 4000) }}",
    "{{ 'a'.center(10**9) }}",
    "{{ 'a'.zfill(10**9) }}",
    "{{ 'a' | attr('ljust')(10**9) }}",
    "{{ '\\t'.expandtabs(10**9) }}",
    "{{ (1).to_bytes(10**9, 'big') }}",
    "{{ range(99999) | join('x' * 10000) }}",
    "{{ ('x' * 10000).join(range(99999) | map('string')) }}",
    "{{ ('ab' * 10000).replace('', 'x' * 10000) }}",
    "{{ ('ab' * 10000) | replace('a', 'x' * 10000) }}",
    "{{ ('\\n' * 100000) | indent(10**9) }}",
    "{{ ('\\n' * 100000) | indent('x' * 999) }}",
    "{{ [[1]] | tojson(indent=10**9) }}",
    "{{ strftime_now('%1000000000Y') }}",
    "{{ range(10**9) | list }}",
    "{% for i in range(99999) %}{{ 'x' * 100000 }}{% endfor %}",
    "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "{% for i in range(99999) %}{% for j in range(99999) %}{% set x = i %}{% endfor %}{% endfor %}",
    "{% set r = range(99999) | list %}{% for i in r %}{% for j in r %}{% endfor %}{% endfor %}",
    "{% set r = range(99999) | list %}{% for i in r recursive %}{{ loop(r) }}{% endfor %}",
    "{% set s = 'x' * 10000000 %}{% for i in range(99999) %}{% set y = s | upper %}{% endfor %}",
    "{% set s = 'x' * 10000000 %}{% for i in range(99999) %}{% set y = s.upper() %}{% endfor %}",
    "{% set s = 'ab' * 4000000 %}{% for i in range(99999) %}{% set y = 'zz' in s %}{% endfor %}",
    "{% set s = 'ab' * 4000000 %}{% for i in range(99999) %}{% set y = 'zz' is in s %}{% endfor %}",
    "{% set s = 'ab' * 4000000 %}{% for i in range(99999) %}{% set y = s[1:] %}{% endfor %}",
    "{% set s = 'ab' * 4000000 %}{% for i in range(99999) %}{% set y = s + 'c' %}{% endfor %}",
    *(
        "{% set r = range(99999) | list %}{% for i in r %}{% set y = r | FILTER %}{% endfor %}".replace(
            "FILTER", name
        )
        for name in (
            "sort",
            "unique | list",
            "map('string') | list",
            "select | list",
            "min",
            "groupby(0) | list",
        )
    ),
    *(
        "{% set s = 'ab ' * 3000000 %}{% for i in range(99999) %}{% set y = s PASS %}{% endfor %}".replace(
            "PASS", name
        )
        for name in (
            "| trim",
            "| e",
            "| title",
            "| wordcount",
            "| urlencode",
            "| replace('z', '')",
            ".split()",
        )
    ),
    "{% set r = [range(99999) | list] * 9999 %}{{ r | map('sort') | list | length }}",
    NEST + "{{ [ns.x] | select | map('tojson') | list | length }}",
    "{% set r = range(99999) | list %}{% for i in r %}{% set y = -1 in r %}{% endfor %}",
    "{% set r = range(99999) | list %}{% set q = r + [] %}{% for i in r %}{% set y = q == r %}{% endfor %}",
    "{% set r = range(99999) | list %}{% for i in r %}{% set y = r.count(-1) %}{% endfor %}",
    "{% set r = range(99999) | list %}{{ r | select('in', [-1] * 99999) | list }}",
    "{% set r = range(99999) | list %}{% for i in r %}{% set y = r + [i] %}{% endfor %}",
    "{{ ([[0] * 100] * 99999) | sum(start=[]) }}",
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(40) }}",
    DOUBLE.replace("STEP", "{% set ns.x = ns.x ~ ns.x %}"),
    DOUBLE.replace("STEP", "{% set ns.x = ns.x + ns.x %}"),
    DOUBLE.replace("STEP", "{% set ns.x = [ns.x, ns.x] | join %}"),
    DOUBLE.replace("STEP", "{% set ns.x = '%s%s' % (ns.x, ns.x) %}"),
    DOUBLE.replace("STEP", "{% set ns.x = '{0}{0}'.format(ns.x) %}"),
    DOUBLE.replace("STEP", "{% set ns.x = ns.x.replace('a', ns.x) %}"),
    DOUBLE.replace("STEP", "{% set ns.x %}{{ ns.x }}{{ ns.x }}{% endset %}"),
    DOUBLE.replace("'ab'", "[1]").replace("STEP", "{% set ns.x = ns.x + ns.x %}"),
    NEST + "{{ ns.x }}",
    NEST + "{{ ns.x | tojson }}",
    NEST + "{{ ns.x | string | length }}",
    NEST + "{{ 'a' ~ ns.x }}",
    NEST + "{{ '%s' % ns.x }}",
    NEST + "{{ '{}'.format(ns.x) }}",
]


@pytest.mark.parametrize("source", ESCAPES + CHANGES)
def test_template_cannot_leave_the_sandbox_or_change_the_messages(source: str) -> None:
    messages = [dict(MESSAGES[0])]
    with pytest.raises(RequestError):
        ChatTemplate(source).render(messages)
    assert messages == MESSAGES


@pytest.mark.parametrize("source", HIDDEN)
def test_unsafe_attribute_shows_nothing(source: str) -> None:
    assert ChatTemplate(source).render(MESSAGES) == ""


@pytest.mark.timeout(60)  # each is refused within 2 s here; unbounded, they take minutes or gigabytes
@pytest.mark.parametrize("source", EXPLOSIONS)
def test_template_cannot_eat_the_machine(source: str) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF)
    with pytest.raises(RequestError):
        ChatTemplate(source).render(MESSAGES)
    after = resource.getrusage(resource.RUSAGE_SELF)
    assert after.ru_maxrss - before.ru_maxrss < 400 * 1024  # KiB


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ 'ab' * 3 }}{{ 2 * 3 }}{{ 2 ** 10 }}{{ 7 % 4 }}", "ababab610243"),
        ("{{ [1] + [2] }}{{ [0] * 2 }}", "[1, 2][0, 0]"),
        ("{{ '%s-%05.1f' % ('a', 2.5) }}{{ '%(x)s' % {'x': 1} }}{{ '%s' | format('b') }}", "a-002.51b"),
        ("{{ '{:>4}|{a}'.format('x', a=1) }}", "   x|1"),
        ("{{ 'a-b'.replace('-', '+') }}{{ 'aaa' | replace('a', 'b', 2) }}", "a+bbba"),
        ("{{ ', '.join(['a', 'b']) }}{{ [{'n': 1}, {'n': 2}] | join('/', attribute='n') }}", "a, b1/2"),
        ("{{ 'a\\nb' | indent(2) }}{{ 'a\\nb' | indent('> ', first=true) }}", "a\n  b> a\n> b"),
        ("{% set x %}{{ 'in' }}block{% endset %}{{ x | upper }}", "INBLOCK"),
        ("{% filter upper %}abc{% endfilter %}", "ABC"),
        ("{% for i in [1, [2, [3]]] recursive %}{{ loop(i) if i is iterable else i }}{% endfor %}", "123"),
        ("{% for i in range(3) if i != 1 %}{{ i }}{{ ',' if not loop.last }}{% endfor %}", "0,2"),
        ("{% for k, v in {'a': 1}.items() %}{{ k }}{{ v }}{% endfor %}", "a1"),
        (
            "{{ 'b' in 'abc' }}{{ 2 not in [1] }}{{ 'k' in {'k': 1} }}{{ 1 < 2 <= 2 }}{{ [1] == [1] }}",
            "True" * 5,
        ),
        ("{{ 'abc'[1:] }}{{ [1, 2, 3][::-1] }}{{ 2 is in [2] }}{{ 3 is gt 2 }}", "bc[3, 2, 1]TrueTrue"),
        ("{{ [{'n': 1}, {'n': 2.5}] | sum(attribute='n') }}{{ [1] | sum(start=4) }}", "3.55"),
        ("{{ dict(a=1).a }}{{ namespace(b=2).b }}{{ range(4) | sum }}", "126"),
        ("{{ messages | selectattr('role', 'equalto', 'user') | list | length }}", "1"),
        ("{{ messages | map(attribute='content') | map('upper') | first }}", "HI"),
        (
            "{% for i in range(5) %}{% if i == 1 %}{% continue %}{% endif %}"
            "{% if i == 3 %}{% break %}{% endif %}{{ i }}{% endfor %}",
            "02",
        ),
        ("{% set j = joiner(', ') %}{% for i in range(2) %}{{ j() }}{{ i }}{% endfor %}", "0, 1"),
        ("{{ {'k': '<é>'} | tojson }}{{ 'a' | e }}", '{"k": "<é>"}a'),
    ],
)
def test_what_templates_use_works_as_in_jinja(source: str, text: str) -> None:
    assert ChatTemplate(source).render(MESSAGES) == text


def test_a_long_conversation_is_within_the_limits() -> None:
    source = (
        "{% set ns = namespace(n=0, seen=[]) %}{% for m in messages %}{% set ns.seen = ns.seen + [m.role] %}"
        "{% set ns.n = ns.n + 1 %}{{ '<' ~ m.role ~ '>' + m.content | trim + '\\n' }}{% endfor %}{{ ns.n }}"
    )
    messages = [{"role": "user", "content": "word " * 100}] * 5000
    assert ChatTemplate(source).render(messages).endswith("5000")
