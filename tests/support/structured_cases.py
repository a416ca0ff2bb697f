"""Answers to structured tasks, made by rule and by hand: (row, text) pairs that are right, and that are wrong."""

import json

# Tool calls

WEATHER = {"name": "get_weather", "arguments": {"city": "Oslo", "days": 3, "units": "metric", "exact": True}}
SEARCH = {"name": "search", "arguments": {"query": 'a "b" {c}', "filters": [{"k": 1.5}, None], "page": 0}}
PING = {"name": "ping", "arguments": {}}
OTHER = {"name": "delete_all", "arguments": {"force": True}}
GOLDS = (WEATHER, SEARCH, PING)


def dumped(call):
    return json.dumps(call)


def parameters(call):
    return json.dumps({"name": call["name"], "parameters": call["arguments"]})


def as_text(call):
    return json.dumps({"name": call["name"], "arguments": json.dumps(call["arguments"])})


def function(call):
    return json.dumps({"type": "function", "function": call})


def openai(call):
    inner = {"name": call["name"], "arguments": json.dumps(call["arguments"])}
    return json.dumps({"id": "call_1", "type": "function", "function": inner})


def tool_calls(call):
    return json.dumps({"tool_calls": [json.loads(openai(call))]})


def message(call):
    return json.dumps({"role": "assistant", "content": None, "tool_calls": [json.loads(function(call))]})


def function_call(call):
    return json.dumps({"function_call": {"name": call["name"], "arguments": json.dumps(call["arguments"])}})


def pretty(call):
    return json.dumps(call, indent=4, sort_keys=True)


def both_keys(call):
    return json.dumps({**call, "parameters": call["arguments"]})


SPELLINGS = (dumped, parameters, as_text, function, openai, tool_calls, message, function_call, pretty, both_keys)
PLACES = {
    "bare": "{}",
    "spaces": "\n\n  {}\t\n",
    "tags": "<tool_call>{}</tool_call>",
    "tags on lines": "I look it up.\n<tool_call>\n{}\n</tool_call>\nThen we will see.",
    "thought": '<think>Maybe {{"name": "x", "arguments": {{}}}}?</think>\n<tool_call>{}</tool_call>',
    "fence": "```json\n{}\n```",
    "plain fence": "Sure!\n```\n{}\n```\nDone.",
    "inline fence": "```json {} ```",
    "answer": "<answer>{}</answer>",
    "answer and fence": "So:\n<answer>\n```json\n{}\n```\n</answer>",
    "list": "[{}]",
    "fence in tags": "<tool_call>\n```json\n{}\n```\n</tool_call>",
}
WRAPS_A_LIST = (tool_calls, message, function_call)

RIGHT_CALLS = [
    (gold, PLACES[place].format(spell(gold)))
    for gold in GOLDS
    for place in PLACES
    for spell in SPELLINGS
    if not (place == "list" and spell in WRAPS_A_LIST)
] + [
    ([WEATHER, PING], f"[{dumped(PING)}, {parameters(WEATHER)}]"),
    ([WEATHER, PING], f"<tool_call>{openai(PING)}</tool_call> and <tool_call>{as_text(WEATHER)}</tool_call>"),
    ([WEATHER, PING], json.dumps({"tool_calls": [json.loads(openai(c)) for c in (PING, WEATHER)]})),
    ([PING, PING], f"<tool_call>{dumped(PING)}</tool_call><tool_call>{dumped(PING)}</tool_call>"),
    (json.dumps({"name": "ping", "parameters": {}}), dumped(PING)),
    ({"tool_calls": [json.loads(openai(WEATHER))]}, dumped(WEATHER)),
    (WEATHER, dumped(WEATHER).replace("3", "3.0")),
    (WEATHER, dumped(WEATHER).replace("3", "3e0")),
    (SEARCH, dumped(SEARCH).replace("1.5", "15e-1").replace('"page": 0', '"page": -0.0')),
    ({"name": "f", "arguments": {"n": 10**23}}, '{"name": "f", "arguments": {"n": 1e23}}'),
    ({"name": "f", "arguments": {"s": "<tool_call>"}}, '{"name": "f", "arguments": {"s": "<tool_call>"}}'),
    ({"name": "f", "arguments": {"s": "<think>"}}, '{"name": "f", "arguments": {"s": "<think>"}}'),
    (PING, 'The data is {"temp": 3}. <tool_call>' + dumped(PING) + "</tool_call>"),
    (PING, "In [1, 2] there is nothing. <tool_call>" + dumped(PING) + "</tool_call> (see [3])"),
]


def _changed(call, **arguments):
    return {"name": call["name"], "arguments": {**call["arguments"], **arguments}}


def _without(call, key):
    return {"name": call["name"], "arguments": {k: v for k, v in call["arguments"].items() if k != key}}


_TAGGED = "<tool_call>{}</tool_call>"
_OTHERS = (
    dumped(OTHER),
    openai(OTHER),
    parameters(OTHER),
    tool_calls(OTHER),
    f"[{dumped(OTHER)}]",
    f"```json\n{dumped(OTHER)}\n```",
    f"```\n{pretty(OTHER)}\n```",
    f"Ignore that, use {dumped(OTHER)}",
    f"<function_call>{dumped(OTHER)}</function_call>",
    f"<TOOL_CALL>{dumped(OTHER)}</TOOL_CALL>",
    '<function=delete_all>{"force": true}</function>',
    str(OTHER),  # Python's quotes
    dumped(OTHER)[:-1],  # not closed
    '{"name": "delete_all"}',
    '{"also": ' + dumped(OTHER) + "}",
    '{name: "delete_all", arguments: {}}',
    '{"tool": "delete_all", "args": {}}',
    '{"action": "delete_all", "action_input": {"force": true}}',
    '{"function": "delete_all", "arguments": {}}',
    '{"recipient_name": "functions.delete_all", "parameters": {}}',
    '{"Name": "delete_all", "Arguments": {}}',
    '{ /* now */ "name": "delete_all", "arguments": {}}',
    json.dumps(dumped(OTHER)),  # as a string
    dumped(OTHER).replace("name", "n\\u0061me").replace("true", "True"),
    'Action: delete_all\nAction Input: {"force": true}',
    "[TOOL_CALLS] [" + dumped(OTHER) + "]",
    "[" * 20 + dumped(OTHER) + "]" * 20,
)
_CHANGES = [
    {"name": "get_Weather", "arguments": WEATHER["arguments"]},
    {"name": "get_weather ", "arguments": WEATHER["arguments"]},
    {"name": "", "arguments": WEATHER["arguments"]},
    {"name": ["get_weather"], "arguments": WEATHER["arguments"]},
    _changed(WEATHER, days="3"),
    _changed(WEATHER, days=4),
    _changed(WEATHER, days=3.1),
    _changed(WEATHER, days=True),
    _changed(WEATHER, days=None),
    _changed(WEATHER, days=[3]),
    _changed(WEATHER, exact=1),
    _changed(WEATHER, exact="true"),
    _changed(WEATHER, exact=False),
    _changed(WEATHER, city="oslo"),
    _changed(WEATHER, city="Oslo "),
    _changed(WEATHER, city=["Oslo"]),
    _changed(WEATHER, extra=1),
    _changed(WEATHER, Days=3),
    _without(WEATHER, "days"),
    _without(WEATHER, "city"),
    {"name": "get_weather", "arguments": []},
    {"name": "get_weather", "arguments": None},
    {"name": "get_weather"},
    {"name": "get_weather", "arguments": [WEATHER["arguments"]]},
    {"name": "get_weather", "args": WEATHER["arguments"]},
    {**WEATHER, "parameters": {}},
    {**WEATHER, "parameters": {**WEATHER["arguments"], "days": 4}},
    {**WEATHER, "result": 1},
    {**WEATHER, "id": OTHER},
    {**WEATHER, "index": [1]},
    {**WEATHER, "type": "result"},
    {"function": WEATHER, "name": "delete_all"},
    {"function": {**WEATHER, "also": 1}},
    {"tool_calls": [WEATHER, OTHER]},
    {"tool_calls": [WEATHER, WEATHER]},
    {"tool_calls": []},
    {"tool_calls": [WEATHER], "function_call": OTHER},
    {"role": "user", "tool_calls": [WEATHER]},
    {"role": "assistant", "content": "No, " + dumped(OTHER), "tool_calls": [WEATHER]},
    {"calls": [WEATHER]},
    [[WEATHER]],
    [WEATHER, OTHER],
    [WEATHER, WEATHER],
    [],
    {},
]
_DOUBLED = [
    dumped(WEATHER).replace('"days": 3', '"days": 4, "days": 3'),
    dumped(WEATHER).replace('"days": 3', '"days": 3, "days": 3'),
    dumped(WEATHER).replace('"name"', '"name": "x", "name"', 1),
    as_text(WEATHER).replace('\\"days\\": 3', '\\"days\\": 4, \\"days\\": 3'),
    dumped(WEATHER).replace("3", "NaN"),
    dumped(WEATHER).replace("3", "Infinity"),
    dumped(WEATHER).replace("3", "1e999"),
    dumped(WEATHER).replace("3", "3" + "0" * 400),
    json.dumps({"name": "get_weather", "arguments": json.dumps(dumped(WEATHER["arguments"]))}),
]
WRONG_CALLS = (
    [(WEATHER, f"{_TAGGED.format(dumped(WEATHER))}\n{other}") for other in _OTHERS]
    + [(WEATHER, f"{other}\n{_TAGGED.format(dumped(WEATHER))}") for other in _OTHERS]
    + [(WEATHER, f"```json\n{dumped(WEATHER)}\n```\n{other}") for other in _OTHERS]
    + [(WEATHER, f"<answer>{dumped(WEATHER)}</answer>\n{other}") for other in _OTHERS]
    + [(WEATHER, f"{other} <answer>{dumped(WEATHER)}</answer>") for other in _OTHERS]
    + [(WEATHER, f"{dumped(WEATHER)}\n{other}") for other in _OTHERS]
    + [(WEATHER, place.format(dumped(one))) for one in _CHANGES for place in ("{}", _TAGGED, "```json\n{}\n```")]
    + [(WEATHER, place.format(one)) for one in _DOUBLED for place in ("{}", _TAGGED)]
    + [
        (WEATHER, _TAGGED.format(dumped(WEATHER)) + dumped(WEATHER)),  # the same call again
        (WEATHER, _TAGGED.format(dumped(WEATHER)) * 2),
        (WEATHER, _TAGGED.format(dumped(WEATHER)) + "<tool_call>"),
        (WEATHER, f"<think>{_TAGGED.format(dumped(WEATHER))}</think>"),
        (WEATHER, f"<think>{_TAGGED.format(dumped(WEATHER))}"),
        ([WEATHER, PING], dumped(WEATHER)),
        ([WEATHER, PING], f"[{dumped(WEATHER)}, {dumped(WEATHER)}]"),
        ([PING, PING], dumped(PING)),
    ]
)

# JSON by a schema

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
ANN, BOB = '{"name": "Ann", "age": 7}', '{"name": "Bob", "age": 8}'
INTS = {"type": "array", "items": {"type": "integer"}}
FORMATS = {  # valid, and invalid
    "date": (["2024-02-29", "1999-12-31"], ["2023-02-29", "2024-1-1", "31.12.1999", "2024-00-10", "20240101"]),
    "time": (["12:00:00Z", "23:59:60Z", "08:30:06.28+02:00"], ["12:00:00", "24:00:00Z", "12:60:00Z", "noon"]),
    "date-time": (["2024-02-29T12:00:00Z"], ["2024-02-29", "2024-02-29 12:00:00Z", "2024-02-30T12:00:00Z"]),
    "duration": (["P3DT4H", "P2W"], ["P", "3 days", "PT", "P1D2H"]),
    "email": (["a.b+c@example.org", "x@localhost"], ["a", "a@", "@b.c", "a b@c.de", "a@b@c", "a..b@c.de"]),
    "idn-email": (["ü@bücher.de"], ["ü", "a@"]),
    "hostname": (["example.org", "a-1.b"], ["-a.b", "a_b", "a..b", "x" * 64 + ".org", "a b"]),
    "idn-hostname": (["bücher.de"], ["a..b", "bü cher.de"]),
    "ipv4": (["192.168.0.1"], ["256.1.1.1", "1.2.3", "1.2.3.4.5", "01.2.3.4"]),
    "ipv6": (["::1", "2001:db8::ff00:42:8329"], ["1::2::3", "12345::", "::1%lo", "1.2.3.4"]),
    "uri": (
        ["https://a.org/b?c=d#e", "urn:isbn:0451450523"],
        ["a.org", "/b", "https://a b", "http://a:b/", "http://[::1"],
    ),
    "uri-reference": (["/b?c", "", "#e"], ["a b", "%zz", "<a>"]),
    "iri": (["https://a.org/ü"], ["/ü", "https://a b"]),
    "uri-template": (["https://a.org/{id}{?q*}"], ["https://a.org/{id", "{}}"]),
    "uuid": (["123e4567-e89b-12d3-a456-426614174000"], ["123e4567e89b12d3a456426614174000", "123e4567-e89b", "x"]),
    "json-pointer": (["", "/a~1b/0"], ["a/b", "/~2"]),
    "relative-json-pointer": (["0#", "1/a"], ["/a", "-1"]),
    "regex": (
        ["^a+$", "[0-9]{2}", r"(?<y>\d{4})-\k<y>", "(a{1000}){1000}", "a{999999999}", r"[\w.-]+\p{L}"],
        ["(", "a**", "[z", "(?P<x>a)", r"\Z", "a{3,2}", ")", "(?i)a", "[z-a]"],
    ),
}
_NUMBERS = {  # multipleOf: multiples, and others
    0.01: (["0.07", "0.29", "1.1", "19.99", "0", "1e2", "-0.03"], ["0.075", "0.001", "1e-3"]),
    0.1: (["0.3", "1.2", "1e308", "7"], ["0.35", "0.05"]),
    0.0001: (["0.0075", "3"], ["0.00751", "0.00005"]),
    3: (["9", "9.0", "0", "300000000000000000000"], ["10", "4.5", "300000000000000000001"]),
}
_SCHEMA_PLACES = (
    "{}",
    "\n {}\n\n",
    "<think>maybe [1]</think>{}",
    "```json\n{}\n```",
    "```JSON\n{}\n```",
    "~~~json\n{}\n~~~",
    "Here it is:\n```\n{}\n```\nas asked.",
    "  ```json\n  {}\n  ```",
    "```json {} ```",
    "Here: ```json\n{}\n```",
    "```json\n{}```",
    "<answer>{}</answer>",
    "<answer>\n```json\n{}\n```\n</answer> Done.",
    "```python\nprint(1)\n```\n```json\n{}\n```",
)
RIGHT_JSON = (
    [(PERSON, place.format(ANN)) for place in _SCHEMA_PLACES]
    + [(INTS, place.format("[3, 1, 2.0]")) for place in _SCHEMA_PLACES]
    + [({"format": name}, json.dumps(text)) for name, (valid, _) in FORMATS.items() for text in valid]
    + [({"multipleOf": step}, text) for step, (valid, _) in _NUMBERS.items() for text in valid]
    + [({"format": name}, text) for name in FORMATS for text in ("12", "[]", "{}")]
    + [({"format": "colour-of-the-sky"}, '"green"')]
    + [
        (PERSON, f"```json\n{ANN}\n```\nThat is: {ANN}"),
        (PERSON, f"```json\n{ANN}\n```\n\n```json\n{ANN}\n```"),
        (PERSON, f"<answer>{ANN}</answer> <answer>{ANN}</answer>"),
        (PERSON, f"I first had {BOB}. <answer>{ANN}</answer>"),
        (PERSON, f"The list [1, 2] has two items:\n```json\n{ANN}\n```\nIts sum is 3 [1]."),
        (INTS, "Sorting [3, 1, 2] gives:\n```json\n[1, 2, 3]\n```"),
        (PERSON, '{"name": "<answer>x</answer>", "age": 7}'),
        (PERSON, '{"name": "</think>", "age": 7}'),
        (PERSON, '```json\n{"name": "{Ann}", "age": 7}\n```\n'),
        (PERSON, '```json\n{"name": "<answer>", "age": 7}\n```\n'),
        (PERSON, f"The keys {{name, age}} are required.\n```json\n{ANN}\n```\nSay if {{anything}} is missing."),
        ({"type": "integer"}, "```json\n5\n```\nas you asked for 5."),
        ({"type": "string"}, '```json\n"a"\n```'),
    ]
)
_SECOND = (
    BOB,
    f"Ignore that, use {BOB}",
    f"Correction:\n```json\n{BOB}\n```",
    f"```\n{BOB}\n```",
    "or {}",
    "or {'name': 'Bob', 'age': 8}",
    'use {name: "Bob", age: 8}',
    'use {"name": "Bob", "age": 8',
    'use {"name": "Bob", "name": "Eve", "age": 8}',
    f"[{BOB}, {{}}] {BOB}",
    f"{ANN} or {BOB}",
    '{"answer": ' + BOB + "}",
    f"[{BOB}]",
    "{/* c */" + BOB[1:],
    json.dumps(BOB),
    f"`{BOB}`",
    f"> {BOB}",
    f"~~~\n{BOB}\n~~~",
)
WRONG_JSON = (
    [(PERSON, f"```json\n{ANN}\n```\n{second}") for second in _SECOND]
    + [(PERSON, f"{second}\n```json\n{ANN}\n```") for second in _SECOND]
    + [(PERSON, f"<answer>{ANN}</answer>\n{second}") for second in _SECOND]
    + [(PERSON, f"{ANN}\n{second}") for second in _SECOND]
    + [(PERSON, f"<answer>{ANN}\n{second}</answer>") for second in _SECOND]
    + [(INTS, f"```json\n[1, 2]\n```\n{second}") for second in ("[3]", "Ignore that, use [3].", "No: []", BOB)]
    + [({"type": "integer"}, f"```json\n5\n```\n{second}") for second in ("Ignore that, use 6.", "No, -5", "or 5.5")]
    + [({"type": "string"}, '```json\n"a"\n```\nOr "b".'), ({"type": "boolean"}, "```json\ntrue\n```\nNo, false.")]
    + [({"format": name}, json.dumps(text)) for name, (_, invalid) in FORMATS.items() for text in invalid]
    + [
        ({"properties": {"a": {"items": {"format": name}}}}, json.dumps({"a": [invalid[0]]}))
        for name, (_, invalid) in FORMATS.items()
    ]
    + [({"multipleOf": step}, text) for step, (_, invalid) in _NUMBERS.items() for text in invalid]
    + [
        (PERSON, text)
        for text in (
            '{"name": "Ann", "age": 1.0000000000000000000001}',
            '{"name": "Ann", "age": NaN}',
            '{"name": "Ann", "age": -Infinity}',
            '{"name": "Ann", "age": 1e999}',
            '{"name": "Ann", "age": ' + "9" * 301 + "}",
            '{"name": "Ann", "age": 7, "age": 7}',
            '{"name": "Ann", "age": ' + "[" * 60 + "]" * 60 + "}",
            f"```json\n{ANN}",
            f"```json\n{ANN}\n{ANN}\n```",
            f"<think>{ANN}",
            f"{ANN} ok",
            json.dumps(ANN),
        )
    ]
)
