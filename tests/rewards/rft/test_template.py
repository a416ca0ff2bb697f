"""Templates: placeholders are paths, are filled once, and tell missing rows from missing answers."""

import time

import pytest

from outdo.rewards.rft.template import MissingItem, MissingSample, TemplateError, parse, render

ITEM = {"answer": "four", "n": 4, "list": [1, {"a": "x"}], "odd key": "o", "ratio": 0.5, "yes": True, "none": None}
SAMPLE = {
    "output_text": "hello",
    "output_json": {"a": {"b": [10, 20]}, "s": "é"},
    "output_tools": [{"function": {"name": "add", "arguments": '{"x": 1}'}}],
}


def filled(text, item=ITEM, sample=SAMPLE):
    return render(parse(text), item, sample)


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("no placeholder", "no placeholder"),
        ("", ""),
        ("{{item.answer}}", "four"),
        ("{{  item.answer\t}}!", "four!"),
        ("{{ item.n }}{{ item.n }}", "44"),
        ("{{ item.list[0] }}", "1"),
        ("{{ item.list[1].a }}", "x"),
        ("{{ item.list[-1]['a'] }}", "x"),
        ("{{ item['odd key'] }}", "o"),
        ('{{ item["odd key"] }}', "o"),
        ("{{ item.list }}", '[1, {"a": "x"}]'),
        ("{{ item.ratio }} {{ item.yes }} {{ item.none }}", "0.5 true null"),
        ("{{ sample.output_text }}", "hello"),
        ("{{ sample.output_json.a.b[1] }}", "20"),
        ("{{ sample.output_json }}", '{"a": {"b": [10, 20]}, "s": "é"}'),
        ("{{ sample.output_tools[0].function.name }}", "add"),
        ("{{ sample.output_tools[0].function.arguments }}", '{"x": 1}'),
        ('{"n": {{item.n}}}', '{"n": 4}'),
        ("a } b }} c { d", "a } b }} c { d"),
    ],
)
def test_placeholders_are_filled(text, want):
    assert filled(text) == want


def test_values_are_not_expanded():
    hostile = "{{ item.answer }} }} {{"
    assert filled("[{{ sample.output_text }}]", sample={"output_text": hostile}) == f"[{hostile}]"
    assert filled("{{ item.a }}{{ item.b }}", item={"a": "{{ item", "b": ".a }}"}) == "{{ item.a }}"


@pytest.mark.parametrize("text", ["\0", "\ud800", "{" * 9, "a\nb", "x" * 1_000_000])
def test_odd_texts(text):
    assert filled("<{{ sample.output_text }}>", sample={"output_text": text}) == f"<{text}>"


@pytest.mark.parametrize(
    ("text", "column", "message"),
    [
        ("ab {{ item.x", 4, "never closed"),
        ("{{ }}", 3, "nothing between"),
        ("{{ foo.x }}", 4, "'foo' is not a namespace"),
        ("{{ item }}", 8, "name a variable"),
        ("{{ sample }}", 10, "name a variable"),
        ("{{ item[0] }}", 8, "not a list"),
        ("{{ item.x + 1 }}", 10, "no expressions"),
        ("{{ item.x | upper }}", 10, "no expressions"),
        ("{{ item.x() }}", 10, "no expressions"),
        ("{{ item..x }}", 8, "not a path"),
        ("{{ item.list[*] }}", 13, "not a path"),
        ("{{ item.__class__ }", 1, "never closed"),
        ("{{ sample.output_txt }}", 10, "did you mean 'output_text'"),
        ("{{ sample.output_audio }}", 10, "it has output_text"),
        ("{{ sample.output_text.a }}", 10, "has no keys"),
        ("{{{ item.x }}}", 3, "not a namespace"),
    ],
)
def test_invalid_templates(text, column, message):
    with pytest.raises(TemplateError, match=message) as caught:
        parse(text)
    assert f"column {column}:" in str(caught.value)


def test_attributes_are_not_keys():
    with pytest.raises(MissingItem, match=r"item\.__class__ is missing"):
        filled("{{ item.__class__ }}")
    with pytest.raises(MissingItem, match=r"item\.answer\.upper is missing; found a str"):
        filled("{{ item.answer.upper }}")


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("{{ item.gone }}", "item.gone is missing; it has 'answer, n"),
        ("{{ item.list[7] }}", r"item.list\[7\] is missing; the list has 2"),
        ("{{ item.list.a }}", "item.list.a is missing"),
        ("{{ item.n[0] }}", r"item.n\[0\] is missing"),
        ("{{ item.none.x }}", "item.none.x is missing; found null"),
    ],
)
def test_missing_item(text, where):
    with pytest.raises(MissingItem, match=where):
        filled(text)


@pytest.mark.parametrize(
    "text",
    ["{{ sample.output_json.a.c }}", "{{ sample.output_tools[1] }}", "{{ sample.choices[0] }}"],
)
def test_missing_sample(text):
    with pytest.raises(MissingSample, match="is missing"):
        filled(text)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), object(), {1, 2}])
def test_values_that_are_not_json(value):
    with pytest.raises(MissingItem, match="cannot be written as JSON"):
        filled("{{ item.x }}", item={"x": value})


def test_many_braces():
    start = time.monotonic()
    assert filled("}" * 100_000) == "}" * 100_000
    with pytest.raises(TemplateError):
        parse("{{" * 100_000)
    with pytest.raises(TemplateError):
        parse("{{ item" + " " * 200_000 + "x }}")
    assert time.monotonic() - start < 1
