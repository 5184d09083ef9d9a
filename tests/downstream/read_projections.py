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
from records import Malformed, Schemas, json_line

REPOSITORY = Path(__file__).resolve().parents[2]


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    servers = os.environ.get("KAFKA_BOOTSTRAP_SERVERS")
    parser.add_argument("--bootstrap", default=servers, required=servers is None, metavar="HOST:PORT,…")
    parser.add_argument("--topic", default="witness.projections")
    parser.add_argument("--property", action="append", default=[], metavar="NAME=VALUE", help="of librdkafka: TLS…")
    parser.add_argument("--registry", metavar="URL", help="for records in the Confluent wire format")
    parser.add_argument("--schemas", default=REPOSITORY / "schema/avro", metavar="FOLDER")
    parser.add_argument("--check", metavar="URL", help="of the queries; $WITNESS_QUERY_TOKEN is the bearer token")
    parser.add_argument("--patience", type=float, default=30, metavar="SECONDS", help="to wait for what is on its way")
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

    def read_to_end(self, patience):
        """Reads until every partition's end, as far as transactions are decided. False where nothing more comes for
        `patience` seconds before that."""
        heard = time.monotonic()
        while len(self.at_end) < self.partitions:
            if self.poll():
                heard = time.monotonic()
            elif time.monotonic() - heard > patience:
                return False
        return True

    def poll(self):
        """Whether a record or a partition's end came."""
        message = self.consumer.poll(0.5)
        if message is None:
            return False
        if message.error() is None:
            self.at_end.discard(message.partition())
            self.take(message)
        elif message.error().code() == KafkaError._PARTITION_EOF:
            self.at_end.add(message.partition())
        elif message.error().fatal() or not message.error().retriable():
            raise KafkaException(message.error())
        return True

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


def check(topic, queries, patience):
    """What topic and queries say differently after `patience` seconds, as lines of text."""
    deadline = time.monotonic() + patience
    unequal = dict(topic.newest)
    while True:
        queries.forget()
        differences = {key: queries.differences(record) for key, (record, _) in unequal.items()}
        unequal = {key: topic.newest[key] for key, found in differences.items() if found}
        listed = queries.subjects()
        unpublished = (listed or set()) - topic.newest.keys()
        if not (unequal or unpublished) or time.monotonic() >= deadline:
            break
        # Something is still on its way from the store to the topic.
        before = dict(topic.newest)
        topic.poll()
        topic.read_to_end(patience)
        unequal |= {key: new for key, new in topic.newest.items() if before.get(key) != new}
    if listed is None:
        print("no instance lists all subjects: none was looked for that has no record", file=sys.stderr)
    lines = [f"{key}: {line}" for key in unequal for line in differences[key]]
    return lines + [f"{key}: is answered and was never published" for key in sorted(unpublished)]


def main():
    options = arguments()
    topic = Topic(options)
    differences = []
    if not topic.read_to_end(options.patience):
        differences = ["the topic's end was not reached"]
    elif options.check:
        queries = Queries(options.check, os.environ.get("WITNESS_QUERY_TOKEN"))
        differences = check(topic, queries, options.patience)
    problems = [*topic.problems, *differences]
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
