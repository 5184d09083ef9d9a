"""What a published record is, read with fastavro from the .avsc files alone.

Knows both forms a value can have: Avro single-object encoding (`C3 01`, the schema's fingerprint, the datum) and
the Confluent wire format (`00`, the schema's id in a registry, the datum). Must never use code or tables of
Witness, nor skip bytes that it cannot account for.
"""

import io
import json
import urllib.request
from collections import namedtuple
from datetime import datetime, timedelta, timezone
from pathlib import Path
from urllib.parse import quote

import fastavro
from fastavro.schema import fingerprint, parse_schema, to_parsing_canonical_form

SINGLE_OBJECT = b"\xc3\x01"
CONFLUENT = b"\x00"
EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)

Record = namedtuple("Record", "kind key version data")
"""`kind` is "projection" or "fact"; `key` what the record's key must be; `version` the pair (epoch, offset)."""


class Malformed(Exception):
    """Bytes that are no published record."""


class Schemas:
    """The writers' schemas, by what a record's header says of them."""

    def __init__(self, folder, registry=None):
        """`folder` holds *.avsc and history/*.avsc; `registry` is a Confluent-compatible registry's URL, or None."""
        self.registry = registry.rstrip("/") if registry else None
        self.by_id = {}
        self.by_fingerprint = {}
        for file in sorted(Path(folder).glob("**/*.avsc")):
            schema = json.loads(file.read_text())
            self.by_fingerprint[fingerprint_bytes(schema)] = plain(schema)

    def decode(self, value):
        """The record in a Kafka message's value."""
        if value is None:
            raise Malformed("it has no value, and Witness writes no tombstones")
        if value.startswith(SINGLE_OBJECT) and len(value) >= 10:
            schema, datum = self.by_fingerprint.get(value[2:10]), value[10:]
            if schema is None:
                raise Malformed(f"no .avsc file has the fingerprint {value[2:10].hex()} (as on the wire)")
        elif value.startswith(CONFLUENT) and len(value) >= 5:
            schema, datum = self.registered(int.from_bytes(value[1:5], "big")), value[5:]
        else:
            raise Malformed(f"it begins with {value[:2].hex() or 'nothing'}: neither Avro's header nor Confluent's")
        stream = io.BytesIO(datum)
        try:
            data = fastavro.schemaless_reader(stream, schema, None)
        except Exception as error:
            raise Malformed(f"its datum does not decode: {error!r}") from error
        if stream.read(1):
            raise Malformed("bytes follow its datum")
        return record(schema["name"], data)

    def registered(self, schema_id):
        if self.registry is None:
            raise Malformed(f"it needs schema {schema_id} of a registry; name the registry with --registry")
        if schema_id not in self.by_id:
            with urllib.request.urlopen(f"{self.registry}/schemas/ids/{schema_id}", timeout=10) as answer:
                self.by_id[schema_id] = plain(json.loads(json.load(answer)["schema"]))
        return self.by_id[schema_id]


def fingerprint_bytes(schema):
    """The CRC-64-AVRO fingerprint of a schema's parsing canonical form, in the (little-endian) order of the wire."""
    return bytes.fromhex(fingerprint(to_parsing_canonical_form(schema), "CRC-64-AVRO"))


def plain(schema):
    """The schema ready to read with, times left as the numbers they are: a datetime does not hold every one."""
    return parse_schema(without_logical_types(schema))


def without_logical_types(schema):
    if isinstance(schema, dict):
        return {name: without_logical_types(part) for name, part in schema.items() if name != "logicalType"}
    if isinstance(schema, list):
        return [without_logical_types(part) for part in schema]
    return schema


def record(name, data):
    kinds = {"witness.Projection": "projection", "witness.Fact": "fact"}
    if name not in kinds:
        raise Malformed(f"it is a {name}, which has no place among the projections")
    key = subject_key(data["subject"])
    if kinds[name] == "fact":
        key += "/" + encoded(data["fact_id"])
    return Record(kinds[name], key, (data["version"]["epoch"], data["version"]["offset"]), data)


def subject_key(subject):
    """A subject's key, which is its path in a URL, too."""
    return "/".join(encoded(subject[part]) for part in ("tenant", "provider", "kind", "id"))


def encoded(part):
    """One part of a key, and of a URL: all but `A-Za-z0-9-._~` percent-encoded."""
    return quote(part, safe="")


def time_text(micros):
    """RFC 3339 in UTC with microseconds, as in Witness's answers. None stays None."""
    if micros is None:
        return None
    try:
        return (EPOCH + timedelta(microseconds=micros)).strftime("%Y-%m-%dT%H:%M:%S.%fZ").rjust(27, "0")
    except OverflowError:
        return f"{micros}us"


def json_line(record, key, partition, offset):
    """A record as a line of JSON. `value` stays the JSON *text* it is, so that no number in it is rounded."""
    data = dict(record.data, as_of=time_text(record.data["as_of"]))
    for evidence in ("contenders", "unplaced"):
        if evidence in data:
            items = [dict(item, as_of=time_text(item["as_of"])) for item in data[evidence]["items"]]
            data[evidence] = dict(data[evidence], items=items)
    return json.dumps({"key": key, "partition": partition, "offset": offset, "record": record.kind, **data})
