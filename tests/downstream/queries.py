"""Compares published records with what Witness's HTTP queries answer.

Must never call two things equal that differ in a digit: JSON numbers are compared as they are written.
"""

import json
import time
import urllib.error
import urllib.request
from dataclasses import dataclass

from records import subject_key, time_text

VALUE_BYTES_MAX = 32 * 1024
"""A value with more bytes is published as null; its event id and body digest stand beside it."""
ATTEMPTS = 10


class Queries:
    """The query API of a projector, or of the load balancer in front of several."""

    def __init__(self, url, token=None):
        self.url, self.token, self.facts_known = url.rstrip("/"), token, {}

    def differences(self, record):
        """What the answer about a record's subject or fact says otherwise, as lines of text."""
        key = record.key if record.kind == "projection" else record.key.rpartition("/")[0]
        answer, answer_bytes = self.get(f"/v1/subjects/{key}")
        if answer is None:
            return ["nothing is known of it there (404)"]
        if record.kind == "fact":
            answer, answer_bytes = self.fact(key, record.data["fact_id"])
            if answer is None:
                return ["the subject has no such fact there"]
        return list(compared(record, answer, answer_bytes > VALUE_BYTES_MAX))

    def subjects(self):
        """The keys of all subjects, or None where no single instance can list them."""
        keys, after = set(), ""
        while True:
            try:
                page, _ = self.get(f"/v1/subjects?limit=500{after}", attempts=2)
            except Unavailable:
                return None
            for item in page["items"]:
                keys.add(subject_key(item["subject"]))
            if page["next"] is None:
                return keys
            after = f"&after={page['next']}"

    def forget(self):
        """Facts are read anew from here on."""
        self.facts_known.clear()

    def fact(self, key, fact_id):
        if key not in self.facts_known:
            facts, after = {}, ""
            while after is not None:
                page, page_bytes = self.get(f"/v1/subjects/{key}/facts?limit=500{after}")
                facts.update({item["fact_id"]: (item, page_bytes) for item in page["items"]})
                after = None if page["next"] is None else f"&after={page['next']}"
            self.facts_known[key] = facts
        return self.facts_known[key].get(fact_id, (None, 0))

    def get(self, path, attempts=ATTEMPTS):
        """The answer and its size in bytes; (None, 0) where there is nothing. A 503 is asked again."""
        request = urllib.request.Request(self.url + path)
        if self.token:
            request.add_header("Authorization", f"Bearer {self.token}")
        for _ in range(attempts):
            try:
                with urllib.request.urlopen(request, timeout=30) as answer:
                    body = answer.read()
                    return parsed(body), len(body)
            except urllib.error.HTTPError as error:
                if error.code == 404:
                    return None, 0
                if error.code != 503:
                    raise
                time.sleep(float(error.headers.get("Retry-After") or 1))
        raise Unavailable(f"{path} is answered 503 {attempts} times")


class Unavailable(Exception):
    """An answer that did not come."""


def compared(record, answer, is_large):
    """The differences between a record and an answer; `is_large` where it has room for a value too large to publish."""
    data = record.data
    if record.kind == "projection":
        version = tuple(int(answer["meta"]["version"][part]) for part in ("epoch", "offset"))
        if version != record.version:
            yield f"version: published {record.version}, answered {version}"
    only = {"projection": ["status", "basis", "needs_refresh"], "fact": ["fact_id"]}
    for name in ["subject", "certainty", *only[record.kind]]:
        if data[name] != answer[name]:
            yield f"{name}: published {data[name]!r}, answered {answer[name]!r}"
    yield from compared_value("", data, answer, is_large)
    for evidence in [name for name in ("contenders", "unplaced") if name in data]:
        published, answered = data[evidence], answer[evidence]
        if published["total"] != int(answered["total"]) or len(published["items"]) != len(answered["items"]):
            yield f"{evidence}: published {published['total']}, answered {int(answered['total'])}"
            continue
        for index, (one, other) in enumerate(zip(published["items"], answered["items"])):
            for name in ("event_id", "body_digest", "status"):
                if one[name] != other[name]:
                    yield f"{evidence}[{index}].{name}: published {one[name]!r}, answered {other[name]!r}"
            yield from compared_value(f"{evidence}[{index}].", one, other, is_large)


def compared_value(where, published, answered, is_large):
    if time_text(published["as_of"]) != answered["as_of"]:
        yield f"{where}as_of: published {time_text(published['as_of'])}, answered {answered['as_of']}"
    left_out = published["value"] is None and answered["value"] is not None and is_large
    if not left_out and parsed(published["value"] or "null") != answered["value"]:
        yield f"{where}value: published {published['value']}, answered {answered['value']!r}"


@dataclass(frozen=True)
class Number:
    """A number of JSON as it is written."""

    digits: str

    def __int__(self):
        return int(self.digits)


def parsed(text):
    """JSON with each number as it is written."""
    return json.loads(text, parse_float=Number, parse_int=Number)
