"""The formats of JSON Schema draft 2020-12, each a check of one string.

    FORMATS["date"]("2024-02-30")  # False

All checks are linear in the text and read no other library, so that a schema means the same on every machine. A format
that is not in FORMATS is an annotation and accepts everything, as the draft says. Not covered: whether a host or a
mailbox exists, and the registry of URI schemes. Internationalised host names are checked by IDNA 2003.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from functools import partial

from outdo.rewards.ecma import pattern_size

Check = Callable[[str], bool]
_MAX_HOST_CHARS = 253
_MAX_MAILBOX_CHARS = 64  # before the @

_DATE = re.compile(r"([0-9]{4})-([0-9]{2})-([0-9]{2})")
_TIME = re.compile(r"([0-9]{2}):([0-9]{2}):([0-9]{2})(?:\.[0-9]+)?(?:[Zz]|([+-])([0-9]{2}):([0-9]{2}))")
_DATE_PART = r"(?:[0-9]+Y(?:[0-9]+M(?:[0-9]+D)?)?|[0-9]+M(?:[0-9]+D)?|[0-9]+D)"
_TIME_PART = r"T(?:[0-9]+H(?:[0-9]+M(?:[0-9]+S)?)?|[0-9]+M(?:[0-9]+S)?|[0-9]+S)"
_DURATION = re.compile(rf"P(?:[0-9]+W|{_DATE_PART}(?:{_TIME_PART})?|{_TIME_PART})")
_UUID = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_LABEL = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?")
_POINTER = r"(?:/(?:[^~/]|~[01])*)*"
_JSON_POINTER = re.compile(_POINTER, re.DOTALL)
_RELATIVE_POINTER = re.compile(rf"(?:0|[1-9][0-9]*)(?:#|{_POINTER})", re.DOTALL)
_QUOTED = r'"(?:[ !#-\[\]-~]|\\[ -~])*"'
_ATOM = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+"
_MAILBOX = re.compile(rf"{_ATOM}(?:\.{_ATOM})*|{_QUOTED}")
_IDN_ATOM = _ATOM.replace("[A", "[\x80-\U0010ffffA")
_IDN_MAILBOX = re.compile(rf"{_IDN_ATOM}(?:\.{_IDN_ATOM})*|{_QUOTED}")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*")
_PORT = re.compile(r"[0-9]*")
_FUTURE_HOST = re.compile(r"v[0-9A-Fa-f]+\.[A-Za-z0-9._~!$&'()*+,;=:-]+")
_VARIABLE = r"(?:[A-Za-z0-9_]|%[0-9A-Fa-f]{2})(?:\.?(?:[A-Za-z0-9_]|%[0-9A-Fa-f]{2}))*(?::[1-9][0-9]{0,3}|\*)?"
_TEMPLATE = re.compile(
    r"(?:[^\x00-\x20\"'%<>\\^`{|}\x7f]|%[0-9A-Fa-f]{2}|\{[+#./;?&=,!@|]?" + _VARIABLE + r"(?:," + _VARIABLE + r")*\})*"
)


def _characters(also: str, international: bool) -> re.Pattern[str]:
    """Any number of a URI's unreserved characters, its delimiters, escapes, and `also`."""
    beyond = "\xa0-\U0010ffff" if international else ""
    return re.compile(rf"(?:[A-Za-z0-9._~!$&'()*+,;={also}{beyond}-]|%[0-9A-Fa-f]{{2}})*")


_URI = {  # by whether letters beyond ASCII are allowed
    international: {
        "user": _characters(":", international),
        "host": _characters("", international),
        "path": _characters(":@/", international),
        "query": _characters(":@/?", international),
    }
    for international in (False, True)
}


def date(text: str) -> bool:
    match = _DATE.fullmatch(text)
    if match is None:
        return False
    year, month, day = map(int, match.groups())
    leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    lengths = (31, 28 + leap, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
    return 1 <= month <= 12 and 1 <= day <= lengths[month - 1]


def time(text: str) -> bool:
    """RFC 3339's full-time: with an offset; a leap second only at the end of a day in UTC."""
    match = _TIME.fullmatch(text)
    if match is None:
        return False
    hour, minute, second = int(match[1]), int(match[2]), int(match[3])
    hours, minutes = int(match[5] or 0), int(match[6] or 0)
    if hour > 23 or minute > 59 or second > 60 or hours > 23 or minutes > 59:
        return False
    offset = (60 * hours + minutes) * (-1 if match[4] == "-" else 1)
    return second < 60 or (60 * hour + minute - offset) % 1440 == 1439


def date_time(text: str) -> bool:
    return text[10:11] in ("T", "t") and date(text[:10]) and time(text[11:])


def hostname(text: str) -> bool:
    """RFC 1123: labels of ASCII letters, digits and inner hyphens."""
    return len(text) <= _MAX_HOST_CHARS and all(map(_LABEL.fullmatch, text.split(".")))


def idn_hostname(text: str) -> bool:
    try:
        return len(text) <= _MAX_HOST_CHARS and hostname(text.encode("idna").decode("ascii"))
    except UnicodeError:
        return False


def ipv4(text: str) -> bool:
    return text.isascii() and _is_address(ipaddress.IPv4Address, text)


def ipv6(text: str) -> bool:
    return text.isascii() and "%" not in text and _is_address(ipaddress.IPv6Address, text)


def _is_address(kind: Callable[[str], object], text: str) -> bool:
    try:
        kind(text)
    except ValueError:
        return False
    return True


def email(text: str, international: bool = False) -> bool:
    """RFC 5321's mailbox: a dotted or quoted name, @, and a host or an address in brackets."""
    name, at, host = text.rpartition("@")
    mailbox = (_IDN_MAILBOX if international else _MAILBOX).fullmatch(name)
    if not at or len(name.encode("utf-8", "replace")) > _MAX_MAILBOX_CHARS or mailbox is None:
        return False
    if host.startswith("[") and host.endswith("]"):
        return ipv4(host[1:-1]) or (host[1:6].lower() == "ipv6:" and ipv6(host[6:-1]))
    return idn_hostname(host) if international else hostname(host)


def uri(text: str, international: bool = False, relative: bool = False) -> bool:
    """RFC 3986's URI (RFC 3987's IRI); with `relative`, also a reference without a scheme."""
    parts = _URI[international]
    rest, _, fragment = text.partition("#")
    rest, _, query = rest.partition("?")
    scheme, colon, hierarchy = rest.partition(":")
    if not (colon and _SCHEME.fullmatch(scheme)):
        hierarchy = rest
        if not relative or ":" in rest.partition("/")[0]:
            return False
    if hierarchy.startswith("//"):
        authority, slash, path = hierarchy[2:].partition("/")
        if not _is_authority(authority, parts):
            return False
        hierarchy = slash + path
    return all(
        parts[kind].fullmatch(part) for kind, part in (("path", hierarchy), ("query", query), ("query", fragment))
    )


def _is_authority(text: str, parts: dict[str, re.Pattern[str]]) -> bool:
    user, at, rest = text.rpartition("@")
    if at and not parts["user"].fullmatch(user):
        return False
    if rest.startswith("["):
        host, closed, port = rest[1:].partition("]")
        valid = bool(closed) and (ipv6(host) or _FUTURE_HOST.fullmatch(host) is not None)
        return valid and (not port or (port[0] == ":" and _PORT.fullmatch(port[1:]) is not None))
    host, _, port = rest.partition(":")
    return parts["host"].fullmatch(host) is not None and _PORT.fullmatch(port) is not None


def regex(text: str) -> bool:
    try:
        return pattern_size(text) >= 0
    except ValueError:
        return False


def _matches(pattern: re.Pattern[str]) -> Check:
    return lambda text: pattern.fullmatch(text) is not None


FORMATS: dict[str, Check] = {
    "date": date,
    "time": time,
    "date-time": date_time,
    "duration": _matches(_DURATION),
    "email": email,
    "idn-email": partial(email, international=True),
    "hostname": hostname,
    "idn-hostname": idn_hostname,
    "ipv4": ipv4,
    "ipv6": ipv6,
    "uri": uri,
    "uri-reference": partial(uri, relative=True),
    "iri": partial(uri, international=True),
    "iri-reference": partial(uri, international=True, relative=True),
    "uri-template": _matches(_TEMPLATE),
    "uuid": _matches(_UUID),
    "json-pointer": _matches(_JSON_POINTER),
    "relative-json-pointer": _matches(_RELATIVE_POINTER),
    "regex": regex,
}
