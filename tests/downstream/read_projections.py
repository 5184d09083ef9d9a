#!/usr/bin/env python3
"""Reads Witness's projections from Kafka as any other team would: confluent-kafka, fastavro and the .avsc files.

Prints one line of JSON for each record, in the order of each partition. With --check it compares the newest record
of every key with the HTTP query API. Reads `read_committed`: what an aborted transaction wrote was never published.
Must never commit an offset, join a group, or write to a topic.
"""

import argparse
import os
import sys
import time
from pathlib import Path

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition

from queries import Queries, Unavailable
from records import Malformed, Schemas, fingerprint_bytes, fingerprints_in_rust, json_line

REPOSITORY = Path(__file__).resolve().parents[2]


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    servers = os.environ.get("KAFKA_BOOTSTRAP_SERVERS")
    parser.add_argument("--bootstrap", default=servers, required=servers is None, metavar="HOST:PORT,…")
    parser.add_argument("--topic", default="witness.projections")
    parser.add_argument("--property", action="append", default=[], metavar="NAME=VALUE", help="of librdkafka: TLS, SASL")
    parser.add_argument("--registry", metavar="URL", help="for records in the Confluent wire format")
    parser.add_argument("--schemas", default=REPOSITORY / "schema/avro", metavar="FOLDER")
    parser.add_argument("--check", metavar="URL", help="of the queries; $WITNESS_QUERY_TOKEN is the bearer token")
    parser.add_argument("--within", type=float, default=30, metavar="SECONDS", help="that --check waits for what is on its way")
    parser.add_argument("--quiet", action="store_true", help="print no records")
    return parser.parse_args()


class Topic:
    """Everything published so far, and the newest record of every key."""

    def __init__(self, options):
        properties = dict(name.split("=", 1) for name in options.property)
        self.consumer = Consumer(
            {
                **properties,
                "bootstrap.servers": options.bootstrap,
                "group.id": "witness-downstream-reader",  # librdkafka asks for one; it is never joined.
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "error",
            }
        )
        self.schemas = Schemas(options.schemas, options.registry)
        self.quiet = options.quiet
        self.count, self.newest, self.problems = 0, {}, []
        topic = self.consumer.list_topics(options.topic, timeout=30).topics[options.topic]
        if topic.error is not None:
            raise KafkaException(topic.error)
        self.partitions = len(topic.partitions)
        self.consumer.assign([TopicPartition(options.topic, number, OFFSET_BEGINNING) for number in topic.partitions])
        self.at_end = set()

    def read_to_end(self, deadline):
        """Reads until every partition's end, as far as transactions are decided. Without new records it ends at the deadline."""
        while len(self.at_end) < self.partitions and time.monotonic() < deadline:
            self.poll()

    def poll(self):
        message = self.consumer.poll(0.5)
        if message is None:
            return
        if message.error() is None:
            self.at_end.discard(message.partition())
            self.take(message)
        elif message.error().code() == KafkaError._PARTITION_EOF:
            self.at_end.add(message.partition())
        elif message.error().fatal() or not message.error().retriable():
            raise KafkaException(message.error())

    def take(self, message):
        self.count += 1
        key = (message.key() or b"").decode("utf-8", "backslashreplace")
        place = f"partition {message.partition()}, offset {message.offset()}, key {key}"
        try:
            record = self.schemas.decode(message.value())
        except Malformed as error:
            self.problems.append(f"{place}: {error}")
            return
        if record.key != key:
            self.problems.append(f"{place}: the record is about {record.key}")
        before, partition = self.newest.get(record.key, (record, message.partition()))
        if partition != message.partition():
            self.problems.append(f"{place}: the key was in partition {partition} before")
        if record.version < before.version:
            self.problems.append(f"{place}: version {record.version} comes after {before.version}")
        else:
            self.newest[record.key] = (record, message.partition())
        if not self.quiet:
            print(json_line(record, key, message.partition(), message.offset()))


def check(topic, queries, deadline):
    """The differences between topic and queries that are still there at the deadline, as lines of text."""
    unequal = dict(topic.newest)
    while True:
        queries.forget()
        differences = {key: queries.differences(record) for key, (record, _) in unequal.items()}
        listed = queries.subjects()
        unpublished = (listed or set()) - topic.newest.keys()
        unequal = {key: topic.newest[key] for key, found in differences.items() if found}
        if not unequal and not unpublished or time.monotonic() >= deadline:
            break
        # Something is still on its way from the store to the topic, or between two answers.
        known = dict(topic.newest)
        topic.poll()
        unequal |= {key: new for key, new in topic.newest.items() if known.get(key) != new}
    if listed is None:
        print("no instance can list all subjects: subjects without any record were not looked for", file=sys.stderr)
    lines = [f"{key}: {line}" for key in unequal for line in differences[key]]
    return lines + [f"{key}: is answered and was never published" for key in sorted(unpublished)]


def check_fingerprints(folder):
    """Whether fastavro computes, for each .avsc that Witness writes with, the fingerprint in Witness's source."""
    import json

    rust = fingerprints_in_rust(REPOSITORY / "schema/src")
    computed = {file.name: fingerprint_bytes(json.loads(file.read_text())) for file in Path(folder, "history").glob("*.avsc")}
    return [
        f"{name}: Witness writes {rust.get(name, b'').hex() or 'none'}, fastavro computes {computed.get(name, b'').hex() or 'none'}"
        for name in sorted(rust.keys() | computed.keys())
        if rust.get(name) != computed.get(name)
    ]


def main():
    options = arguments()
    deadline = time.monotonic() + options.within
    problems = check_fingerprints(options.schemas)
    topic = Topic(options)
    topic.read_to_end(deadline)
    if len(topic.at_end) < topic.partitions:
        problems.append("the end of the topic was not reached in time; give it more with --within")
    elif options.check:
        queries = Queries(options.check, os.environ.get("WITNESS_QUERY_TOKEN"))
        problems += check(topic, queries, deadline)
    problems += topic.problems
    for problem in problems:
        print(f"read_projections: {problem}", file=sys.stderr)
    checked = f", compared with {options.check}" if options.check else ""
    print(f"{topic.count} records of {len(topic.newest)} keys{checked}; {len(problems)} problems", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (KafkaException, OSError, Unavailable) as error:
        sys.exit(f"read_projections: {error}")
