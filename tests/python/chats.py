"""Random chats, and what transformers makes of them.

Run as a program it writes tests/chat/expected.jsonl anew: what transformers makes of a few chats by each template of
tests/chat, and of small templates that show the grammar. tests/programs/test_jinja.c compares with that.
"""

import datetime
import json
import os
import random

WORDS = ["hello", "World", "naïve", "日本語", "🙂🙃", "<|im_end|>", "<|im_start|>user", "</s>", "[INST]", "a b", " lead",
         "trail ", "\n", "\n\n", "", "tab\t", "'q'", '"dq"', "\\back", "<think>\nhm\n</think>\nok", "<think>x</think>y",
         "{{ x }}", "{% if %}", "&amp;<b>", "\u00a0nb", "ß", "1.5", "é", "\u200d", "\r\n"]


def text(r, most=6):
    return "".join(r.choice(WORDS) + r.choice(["", " "]) for _ in range(r.randint(0, most)))


def value(r, depth=0):
    kind = r.randint(0, 7 if depth < 3 else 4)
    if kind == 5:
        return [value(r, depth + 1) for _ in range(r.randint(0, 3))]
    if kind >= 6:
        return {r.choice(["a", "b", "type", "x y", "é", "items"]): value(r, depth + 1) for _ in range(r.randint(0, 3))}
    return [r.randint(-5, 10**12), text(r), r.random() * 10 ** r.randint(-8, 20), None, r.choice([True, False])][kind]


def call(r):
    f = {"name": r.choice(["get_weather", "f"]),
         "arguments": {r.choice(["city", "n", "deep"]): value(r) for _ in range(r.randint(0, 3))}}
    return r.choice([{"type": "function", "function": f, "id": "call_12345"}, {"function": f}, f])


def tool(r):
    one = {"type": r.choice(["string", "integer", "array"]), "description": text(r)}
    if r.random() < 0.2:
        one["enum"] = ["a", "b"]
    return {"type": "function",
            "function": {"name": "get_weather", "description": text(r),
                         "parameters": {"type": "object", "properties": {"city": one}, "required": ["city"]}}}


def record(r, long=False):
    """A record of JSON Lines: messages, and perhaps tools."""
    m = []
    if r.random() < 0.4:
        m.append({"role": "system", "content": text(r)})
    for _ in range(r.randint(20, 60) if long else r.randint(1, 4)):
        if r.random() < 0.03:
            m.append({"role": r.choice(["user", "assistant", "tool", "foo"]), "content": text(r)})
        m.append({"role": "user", "content": text(r, 200 if long and r.random() < 0.1 else 6)})
        if r.random() < 0.1 and not long:
            break
        answer = {"role": "assistant", "content": text(r)}
        if r.random() < 0.2:
            answer["reasoning_content"] = text(r)
        if r.random() < 0.2:
            answer["tool_calls"] = [call(r) for _ in range(r.randint(1, 2))]
            if r.random() < 0.3:
                answer["content"] = None
            m.append(answer)
            m += [{"role": "tool", "content": text(r), "name": "f", "tool_call_id": "call_12345"}
                  for _ in answer["tool_calls"]]
            answer = {"role": "assistant", "content": text(r)}
        m.append(answer)
    return {"messages": m, **({"tools": [tool(r)]} if r.random() < 0.3 else {})}


class Day(datetime.datetime):
    """The date that tenon's strftime_now gives."""

    @classmethod
    def now(cls, tz=None):
        return cls(2024, 7, 26)


def module():
    from transformers.utils import chat_template_utils
    chat_template_utils.datetime = Day
    return chat_template_utils


def render(template, record, prompt, tokens):
    """transformers' text and the spans of its generation tags in bytes, or None where it refuses the chat."""
    messages = [{k: v for k, v in m.items() if v is not None} for m in record["messages"]]
    try:
        texts, spans = module().render_jinja_template([messages], tools=record.get("tools"), chat_template=template,
                                                      add_generation_prompt=prompt, return_assistant_tokens_mask=True,
                                                      **tokens)
    except Exception:
        return None
    whole = texts[0]
    return whole, [[len(whole[:a].encode()), len(whole[:b].encode())] for a, b in spans[0]]


SNIPPETS = r"""
{{ 1 + 2 * 3 - 4 // 3 }} {{ 7 % 3 }} {{ -7 % 3 }} {{ -7 // 2 }} {{ 2 ** 10 }} {{ 7 / 2 }} {{ 1e3 }} {{ 1_000 }} {{ 0.1 + 0.2 }}
{{ 'a' ~ 1 ~ none ~ true ~ 1.0 }} {{ 'ab' * 2 }} {{ [1] + [2] }} {{ (1,) + (2, 3) }} {{ 'x' + 'y' }}
{{ 1 < 2 < 3 }} {{ 1 < 2 > 3 }} {{ 'a' in 'cat' }} {{ 'k' in d }} {{ 3 not in [1, 2] }} {{ not true or true }} {{ not (1 == 1.0) }}
{{ s if s else 'none' }} {{ 'x' if false }} {{ u or 'default' }} {{ s and 'and' }} {{ none or 0 }} {{ 1 if u else 2 if s else 3 }}
{{ d.a }} {{ d['b c'] }} {{ d.missing }} {{ l[0] }} {{ l[-1] }} {{ l[9] }} {{ l.0 }} {{ d.get('a') }} {{ d.get('z') }} {{ d.get('z', 3) }}
{{ l[1:] }} {{ l[:-1] }} {{ l[::-1] }} {{ l[::2] }} {{ s[1:3] }} {{ s[::-1] }} {{ l[5:] }} {{ s[-3:] }} {{ l[2:0:-1] }} {{ '日本語'[1] }}
{{ s | upper | lower }} {{ ' x ' | trim }}| {{ 'xxaxx' | trim('x') }} {{ l | length }} {{ '日本' | length }} {{ u | length }} {{ d | count }}
{{ l | join(', ') }} {{ l | join }} {{ ld | join(',', attribute='n') }} {{ 'abc' | join('-') }} {{ u | default('d') }} {{ '' | default('e', true) }} {{ '' | d('e') }}
{{ d | tojson }} {{ d | tojson(indent=2) }} {{ '<é"\n>' | tojson }} {{ '<é🙂' | tojson(ensure_ascii=True) }} {{ d | tojson(sort_keys=true) }} {{ l | tojson(separators=(',', ':')) }} {{ {} | tojson(indent=2) }} {{ [] | tojson }}
{{ ld | selectattr('n', 'equalto', 1) | list }} {{ ld | selectattr('b') | map(attribute='n') | list }} {{ ld | rejectattr('b') | list | length }} {{ l | select('odd') | list }} {{ l | reject('==', 2) | list }} {{ l | map('string') | join }}
{{ ld | map(attribute='m', default='no') | join(' ') }} {{ l | first }} {{ l | last }} {{ [] | first }} {{ l | reverse | list }} {{ 'abc' | reverse }} {{ [3, 1, 2] | sort }} {{ ['b', 'A', 'c'] | sort(reverse=true) }} {{ [1, 1, 2] | unique | list }}
{{ d | dictsort }} {{ {'b': 1, 'A': 2} | dictsort }} {{ {'b': 1, 'A': 2} | dictsort(true) }} {{ {'b': 1, 'a': 2} | dictsort(by='value', reverse=true) }} {{ d | items | list }}
{{ '3' | int + 1 }} {{ 'x' | int(7) }} {{ 3.9 | int }} {{ '2.5' | float }} {{ -3 | abs }} {{ (-3) | abs }} {{ 5 | string ~ 6 }} {{ 'a.b' | replace('.', '-') }} {{ 'aaa' | replace('a', 'b', 2) }} {{ 'hELLO wORLD' | capitalize }}
{{ "it's a-b (cD) [eF {gH <iJ ßa éB\u2003ǆx\t1st" | title }} {{ 12 | title }} {{ '' | title }}|
{{ '<a>' | safe + '<b>' }} {{ '<b>' + ('<a>' | safe) }} {{ '<b>' ~ ('<a>' | safe) }} {{ '<b>' | escape }} {{ ('<b>' | safe) | e }}
{{ s is defined }} {{ u is undefined }} {{ none is none }} {{ s is string }} {{ d is mapping }} {{ l is sequence }} {{ u is iterable }} {{ u is sequence }} {{ 1 is number }} {{ true is number }} {{ true is integer }} {{ 1.0 is float }} {{ true is boolean }} {{ 1 is true }} {{ false is false }}
{{ 3 is odd }} {{ 4 is even }} {{ 9 is divisibleby 3 }} {{ 1 is eq 1 }} {{ 1 is ne(2) }} {{ 2 is gt 1 }} {{ 1 is in [1] }} {{ 1 is not in [1] }} {{ range is callable }} {{ s is not none and s is string }}
{{ '  a b  c '.split() }} {{ 'a,b,c'.split(',') }} {{ 'a,b,c'.split(',', 1) }} {{ 'a,b,c'.rsplit(',', 1) }} {{ 'abc'.startswith('a') }} {{ 'abc'.endswith(('x', 'c')) }} {{ 'xay'.strip('xy') }} {{ ' a '.lstrip() }}| {{ ' a '.rstrip() }}|
{{ 'abc'.find('c') }} {{ '日本本'.rfind('本') }} {{ 'aXbX'.count('X') }} {{ 'hello world'.title() }} {{ 'straße'.upper() }} {{ 'ÀÉ'.lower() }} {{ '-'.join(['a', 'b']) }} {{ 'aab'.replace('a', 'c', 1) }} {{ 'prefix'.removeprefix('pre') }} {{ 'name.txt'.removesuffix('.txt') }} {{ '12'.isdigit() }}
{{ [none, true, 1.5, 'it\'s', "say \"x\"", 'both\'"', {'k': (1,)}] }} {{ '\n\t\\é\x07' }} {{ ['\n\t\\é\x07\u200b'] }} {{ () }} {{ (1,) }} {{ {} }} {{ {'a': none} }}
{{ 1.0 }} {{ 1e16 }} {{ 1e15 }} {{ 0.0001 }} {{ 0.00001 }} {{ 123456.789 }} {{ 1e-7 }} {{ 2.5e22 }} {{ 100.0 }}
{% for x in l %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.depth }};{% endfor %}
{% for x in l %}{{ loop.previtem | default('-') }}{{ loop.nextitem is defined }}{{ loop.cycle('a', 'b') }} {% endfor %}{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}{% for k in d %}{{ k }}{% endfor %}{% for x in [] %}x{% else %}empty{% endfor %}
{% for x in l if x != 2 %}{{ x }}{{ loop.last }}{% endfor %}{% for (a, b) in [[1, 2], (3, 4)] %}{{ a + b }}{% endfor %}{% for c in 'hé' %}{{ c }}.{% endfor %}{% for x in u %}x{% endfor %}{% for i in range(5, 1, -2) %}{{ i }}{% endfor %}
{% for x in l %}{% if x == 2 %}{% continue %}{% endif %}{% if x == 3 %}{% break %}{% endif %}{{ x }}{% endfor %}
{% set x = 1 %}{% for i in l %}{% set x = i %}{% endfor %}{{ x }}{% if true %}{% set x = 5 %}{% endif %}{{ x }}{% set a, b = 1, 2 %}{{ a }}{{ b }}{% set t = 1, 2 %}{{ t }}
{% set ns = namespace(n=0, s='') %}{% for i in l %}{% set ns.n = ns.n + i %}{% set ns.s = ns.s ~ i %}{% endfor %}{{ ns.n }}{{ ns.s }}{{ ns.missing is defined }}{% set block %} in {{ s }} {% endset %}[{{ block }}]
{% macro m(a, b='B', c=none) %}{{ a }}{{ b }}{{ c }}{{ x }}{% endmacro %}{% set x = 'late' %}{{ m(1) }} {{ m(1, c=2) }} {{ m(b=3, a=4) }} {% macro rec(n) %}{% if n > 0 %}{{ n }}{{ rec(n - 1) }}{% endif %}{% endmacro %}{{ rec(3) | trim }} {{ m() }}
{%- if s %} a {%- endif %}  {{- ' b' -}}   c {#- gone -#}  d {%+ if s %}e{% endif %} {{ dict(a=1) }} {{ dict({'a': 2}, b=3) }}
a  {% if s -%}   b   {%- else %}x{% endif +%}  c{# one #} {{ '}}' }} {{ "%}" }} {{ {'a': {'b': 1}}['a']['b'] }}{{ {'a': {}} }}
{{ 'x' 'y' }} {{ "\x41\u00e9\U0001F642\101\q" }} {{ 'a\
b' }} {{ True }} {{ None }}{{ d.a if d.a is defined else 'no' }}
{% generation %}one{{ s }}{% endgeneration %}two{% for i in l %}é{% generation %}{{ i }}{% endgeneration %}{% endfor %}{% macro g() %}x{% generation %}in{% endgeneration %}{% endmacro %}{{ g() }}{% macro h() %}日本語{% generation %}abcdef{% endgeneration %}{% endmacro %}{{ h() }}éé
{% if not s is string %}a{% elif l | length > 2 and l[0] == 1 %}b{% else %}c{% endif %}{{ l | length > 2 }}{{ -l[0] }}{{ - 3 | abs }}{{ +1 }}{{ 'a' == 'a' and 'b' or 'c' }}
{{ d == {'a': 1, 'b c': 'two'} }} {{ l == [1, 2, 3] }} {{ (1, 2) == (1, 2) }} {{ [1] == (1,) }} {{ [1, 2] < [1, 3] }} {{ 'a' < 'b' }} {{ none == none }} {{ u == none }} {{ 'B' < 'a' }}
{{ d.keys() | list }} {{ d.values() | list }} {{ ld[0].n }} {{ ld[1]['b'] }} {{ ld | length }} {{ (ld | first).n }}
{{ u.x }}
{{ 1 + u }}
{{ 'a' + 1 }}
{{ [1][u] }}
{{ raise_exception('no: ' + s) }}
{{ 1 // 0 }}
{{ nothing() }}
{{ 3 < 'a' }}
{% for x in none %}{% endfor %}
{{ l | length() }} {{ 'x' | default }} {{ d.a is divisibleby(1) }} {{ strftime_now('%Y-%m-%d %B') }}
{{ ld|unique(attribute='n')|list|length }}
{{ ['a','A']|unique(true)|join }}
{{ ld|map(attribute='n')|join('-', none) }}
{% set ns = namespace(found=false) %}{% for x in l if not ns.found %}{{ x }}{% set ns.found = true %}{% endfor %}
{% for x in l if x != 2 %}{{ loop.index }}{{ loop.last }}{{ loop.revindex }}{{ loop.nextitem }};{% endfor %}
{{ 'a b  c '.split(None, 1)|join('|') }}
{% for x in l %}{% for y in l %}{{ loop.depth }}{{ loop.depth0 }}{% break %}{% endfor %}{% endfor %}
{{ 'aéz'[::-1] }}{{ 'abcdef'[4:1:-2] }}{{ 'abc'[::2] }}
"""

VARIABLES = {"s": "some text", "l": [1, 2, 3], "d": {"a": 1, "b c": "two"},
             "ld": [{"n": 1, "b": True}, {"n": 2, "b": False}, {"n": 1, "m": "yes"}]}


def snippets():
    parts, all_lines = SNIPPETS.strip("\n").split("\n"), []
    for part in parts:
        if all_lines and all_lines[-1].endswith("\\"):
            all_lines[-1] += "\n" + part
        else:
            all_lines.append(part)
    return all_lines


def snippet_text(template):
    c = module()
    compiled = c._compile_jinja_template(template)
    try:
        text, spans = c._render_with_assistant_indices(compiled, messages=[], tools=None, documents=None,
                                                       add_generation_prompt=False, **VARIABLES)
    except Exception:
        return None
    return text, [[len(text[:a].encode()), len(text[:b].encode())] for a, b in spans]


def main():
    folder = os.path.join(os.path.dirname(__file__), "..", "chat")
    tokens = {"bos_token": "<s>", "eos_token": "</s>"}
    with open(os.path.join(folder, "expected.jsonl"), "w", encoding="utf-8") as f:
        def put(**line):
            f.write(json.dumps(line, ensure_ascii=False) + "\n")
        for s in snippets():
            got = snippet_text(s)
            put(snippet=s, **({"text": got[0], "spans": got[1]} if got else {"refused": True}))
        for name in sorted(os.listdir(folder)):
            if not name.endswith(".jinja"):
                continue
            with open(os.path.join(folder, name), encoding="utf-8", newline="") as t:
                template = t.read()
            for i in range(12):
                r = random.Random(i)
                chat = record(r)
                got = render(template, chat, i % 2 == 1, tokens)
                put(template=name, chat=chat, prompt=i % 2 == 1,
                    **({"text": got[0], "spans": got[1]} if got else {"refused": True}))


if __name__ == "__main__":
    main()
