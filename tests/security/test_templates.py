"""Chat templates of strangers: what takes long or becomes large ends with an error, whatever it is made of."""

import pytest
from tests.fuzzing.engine import FuzzedReader, execute
from tests.fuzzing.guard import Guard

from regard.errors import DataError
from regard.text.chat import render_chat

MESSAGES = [{"role": "user", "content": "Hi"}]
LOOP = "{% for i in range(60) %}"
TEMPLATES = [
    "{{ 'a'.ljust(9999999999) }}",
    "{{ '%9999999999d' % 1 }}",
    "{{ '%*d' % (999999999, 1) }}",
    "{{ '{:>9999999999}'.format(1) }}",
    "{{ '{:>{w}}'.format(1, w=9999999999) }}",
    "{{ '{:{w[0]}}'.format(1, w=[9999999999]) }}",
    "{{ 'a'|center(9999999999) }}",
    "{{ 'a'|indent(99999999) }}",
    "{{ ('\n' * 99999)|indent(99999) }}",
    "{{ ('a\t' * 9999).expandtabs(99999) }}",
    "{{ ('a' * 99999).translate({97: 'b' * 99999}) }}",
    "{{ ('a' * 9999).join(range(99999)|map('string')) }}",
    "{{ range(99999)|join('a' * 99999) }}",
    "{{ range(99999)|map('string')|map('replace', '1', 'a' * 999)|list|length }}",
    "{{ 1.5|round(999999999, 'ceil') }}",
    "{{ lipsum(n=99999999) }}",
    "{{ ('<!--' * 200000)|striptags }}",
    "{% set ns = namespace(x='aaaaaaaaaa') %}" + LOOP + "{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
    "{% set ns = namespace(x='aaaaaaaaaa') %}" + LOOP + "{% set ns.x = ns.x + ns.x %}{% endfor %}",
    "{% set ns = namespace(x=9) %}" + LOOP + "{% set ns.x = ns.x * ns.x %}{% endfor %}",
    "{% set ns = namespace(x='a') %}" + LOOP + "{% set ns.x = ns.x|replace('a', 'aaaa') %}{% endfor %}",
    "{% set ns = namespace(x='a') %}" + LOOP + "{% set ns.x = ns.x.replace('a', 'aaaa') %}{% endfor %}",
    "{% set ns = namespace(x=[1]) %}" + LOOP + "{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x|string }}",
    "{% set ns = namespace(x=[1]) %}" + LOOP + "{% set ns.x = dict(a=ns.x, b=ns.x) %}{% endfor %}{{ ns.x|tojson }}",
    "{% set y %}{% for i in range(99999) %}{% for j in range(99999) %}xxxxxxxxxxxx{% endfor %}{% endfor %}{% endset %}",
    "{% set y %}{% for i in range(99999) %}{{ 'a' * 99999 }}{% endfor %}{% endset %}",
    "{% macro f(x) %}{{ f(x ~ x) }}{% endmacro %}{{ f('aaaa') }}",
    "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}{% endfor %}{% endfor %}{% endfor %}",
    "{{ " + "9" * 5_000 + " }}",
    "{{ " + "-" * 100_000 + "1 }}",
    "a" * 1_000_001,
]


@pytest.fixture(scope="module")
def guard(tmp_path_factory: pytest.TempPathFactory) -> Guard:
    return Guard(str(tmp_path_factory.mktemp("work")))


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda text: text[:60])
def test_a_template_without_an_end_is_stopped(template: str, guard: Guard, tmp_path, monkeypatch):
    monkeypatch.setattr("regard.text.chat._MAX_SECONDS", 2.0)
    reader = FuzzedReader("one", lambda: [b""], lambda data, _: render_chat(data.decode(), MESSAGES, {}))
    outcome, kind, detail, _ = execute(reader, template.encode(), tmp_path, guard)
    assert not kind, detail
    assert outcome[0] in ("TemplateLimitError", "DataError", "RejectedMessagesError")


def test_what_templates_need_is_within_the_limits():
    template = (
        "{% set ns = namespace(found=false, parts=[]) %}{% set x, y = 1, [2, 3] %}"
        "{% for m in messages %}{% if m.role == 'user' and m.content is string %}{% set ns.found = true %}{% endif %}"
        "{{ m.role|upper ~ ': ' ~ m['content']|trim|replace('i', 'o')|indent(2) }}\n{% endfor %}"
        "{{ messages|map(attribute='role')|join(', ') }} {{ {'a': [1, 2]}|tojson }} {{ '%s-%02d'|format('a', 7) }} "
        "{{ '{:>4}'.format(x) }} {{ ns.found }} {{ y[-1] }} {{ (messages|length) * 2 }} {{ 7 % 4 }} {{ 'a,b'.split(',') }}"
    )
    assert render_chat(template, MESSAGES, {}) == ("USER: Ho\nuser {\"a\": [1, 2]} a-07    1 True 3 2 3 ['a', 'b']")


def test_a_long_conversation_is_rendered():
    messages = [{"role": "user", "content": "words " * 1_000}] * 100
    template = "{% for m in messages %}{{ m.role + ': ' + m.content|trim }}{% endfor %}"
    assert len(render_chat(template, messages, {})) == 100 * (len("user: ") + 5_999)


def test_the_sandbox_has_no_way_to_the_class_of_a_value():
    for template in ("{{ ''.__class__ }}", "{{ ''|attr('__class__') }}", "{{ ns.__init__ }}", "{{ cycler.__init__ }}"):
        try:
            assert "class" not in render_chat(template, MESSAGES, {"ns": []})
        except DataError:
            continue
