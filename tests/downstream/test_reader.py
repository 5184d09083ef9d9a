"""The reader's own tests: that it reads what Witness writes, and notices what it should.

Must never pass because it compared nothing: the fingerprints and the records are Witness's own.
"""

import copy
import io
import json
import os
import re
import threading
import unittest
import uuid
from argparse import Namespace
from contextlib import redirect_stdout
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import fastavro
import fastavro.utils

import read_projections
from queries import Queries, compared, parsed
from records import Malformed, Record, Schemas, fingerprint_bytes, json_line, subject_key, time_text

REPOSITORY = Path(__file__).resolve().parents[2]
AVRO = REPOSITORY / "schema/avro"
SERVERS = os.environ.get("KAFKA_BOOTSTRAP_SERVERS")

DIGEST = "6b86b273ff34fce19d6b804eff5a3f5747ada4eaa22f1d49c01e52ddb7875b4b"
SUBJECT = {"tenant": "acme/eu", "provider": "ycloud", "kind": "email", "id": "e%2B1+jane%40example.test"}
KEY = "acme%2Feu/ycloud/email/e%252B1%2Bjane%2540example.test"
EVIDENCE = {
    "event_id": "e1",
    "body_digest": DIGEST,
    "status": "sent",
    "value": '{"n": 1.0}',
    "as_of": 1_767_225_600_000_000,
}
PROJECTION = {
    "subject": SUBJECT,
    "certainty": "settled",
    "status": "sent",
    "value": '{"n": 9007199254740993.10}',
    "as_of": 1_767_225_600_000_001,
    "basis": {"event_id": "e1", "body_digest": DIGEST, "ordered_by": "object_time"},
    "contenders": {"total": 20, "items": [EVIDENCE]},
    "unplaced": {"total": 0, "items": []},
    "needs_refresh": False,
    "version": {"epoch": 3, "offset": 4_294_967_302},
}
FACT = {
    "subject": SUBJECT,
    "fact_id": "f/1",
    "certainty": "contested",
    "value": None,
    "as_of": None,
    "contenders": {"total": 2, "items": [EVIDENCE, dict(EVIDENCE, value="[]")]},
    "version": {"epoch": 3, "offset": 7},
}

# The same two, byte for byte as Witness writes them.
WRITTEN_PROJECTION = bytes.fromhex(
    "c301de062e361482b8860e61636d652f65750c79636c6f75640a656d61696c3265253242312b6a616e652534306578616d706c652e7465"
    "73740e736574746c6564020873656e7402347b226e223a20393030373139393235343734303939332e31307d02828082e288d2a3060204"
    "65318001366238366232373366663334666365313964366238303465666635613366353734376164613465616132326631643439633031"
    "65353264646237383735623462166f626a6563745f74696d65280204653180013662383662323733666633346663653139643662383034"
    "6566663561336635373437616461346561613232663164343963303165353264646237383735623462020873656e7402147b226e223a20"
    "312e307d02808082e288d2a30600000000068c80808020"
)
WRITTEN_FACT = bytes.fromhex(
    "c301dae26192120665be0e61636d652f65750c79636c6f75640a656d61696c3265253242312b6a616e652534306578616d706c652e7465"
    "737406662f3112636f6e746573746564000004040465318001366238366232373366663334666365313964366238303465666635613366"
    "35373437616461346561613232663164343963303165353264646237383735623462020873656e7402147b226e223a20312e307d028080"
    "82e288d2a30604653180013662383662323733666633346663653139643662383034656666356133663537343761646134656161323266"
    "3164343963303165353264646237383735623462020873656e7402045b5d02808082e288d2a30600060e"
)


def answer(data):
    """What the queries say where all is well."""
    data = copy.deepcopy(data)
    for part in [data, *data["contenders"]["items"]]:
        part["as_of"] = time_text(part["as_of"])
        part["value"] = json.loads(part["value"] or "null", parse_float=Verbatim)
    data["meta"] = {"version": data["version"]}
    return json.dumps(data, default=str).replace('"<', "").replace('>"', "")


class Verbatim(str):
    """A number that json.dumps would round, marked so that the quotes can be taken off it again."""

    def __new__(cls, digits):
        return super().__new__(cls, f"<{digits}>")


def schema(name):
    return json.loads((AVRO / f"{name}.avsc").read_text())


def datum(name, data):
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema(name)), data)
    return stream.getvalue()


def single_object(name, data):
    return b"\xc3\x01" + fingerprint_bytes(schema(name)) + datum(name, data)


PAGE = '{"items": [%s], "next": %s}'


class Web:
    """A server on a free port that answers GETs from a table, {path: text}; 404 for the rest."""

    def __init__(self, answers):
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                text = answers.get(self.path)
                self.send_response(404 if text is None else 200)
                self.end_headers()
                self.wfile.write((text or "").encode())

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()


class Reading(unittest.TestCase):
    def test_fingerprints_are_those_in_witness_s_source(self):
        pattern = re.compile(r'include_str!\("\.\./avro/history/([\w.]+)"\),\s*0x([0-9a-f_]+)')
        sources = "".join(file.read_text() for file in (REPOSITORY / "schema/src").glob("*.rs"))
        in_rust = {name: int(digits.replace("_", ""), 16) for name, digits in pattern.findall(sources)}
        computed = {
            file.name: int.from_bytes(fingerprint_bytes(json.loads(file.read_text())), "little")
            for file in (AVRO / "history").glob("*.avsc")
        }
        self.assertLessEqual({"projection.1.avsc", "fact.1.avsc"}, computed.keys())
        self.assertEqual(in_rust, computed)

    def test_what_witness_wrote_is_read(self):
        schemas = Schemas(AVRO)
        self.assertEqual(schemas.decode(WRITTEN_PROJECTION), Record("projection", KEY, (3, 4_294_967_302), PROJECTION))
        self.assertEqual(schemas.decode(WRITTEN_FACT), Record("fact", KEY + "/f%2F1", (3, 7), FACT))

    def test_fastavro_writes_the_same_bytes(self):
        self.assertEqual(single_object("projection", PROJECTION), WRITTEN_PROJECTION)
        self.assertEqual(single_object("fact", FACT), WRITTEN_FACT)

    def test_an_observation_has_no_place_here(self):
        value = single_object("observation", fastavro.utils.generate_one(schema("observation")))
        with self.assertRaisesRegex(Malformed, "witness.Observation"):
            Schemas(AVRO).decode(value)

    def test_the_wire_format_of_a_registry(self):
        value = b"\x00" + (258).to_bytes(4, "big") + datum("fact", FACT)
        with Web({"/schemas/ids/258": json.dumps({"schema": json.dumps(schema("fact"))})}) as registry:
            self.assertEqual(Schemas(AVRO, registry.url).decode(value).data, FACT)
        with self.assertRaisesRegex(Malformed, "schema 258 of a registry"):
            Schemas(AVRO).decode(value)

    def test_what_is_no_record_is_malformed(self):
        good = single_object("projection", PROJECTION)
        for value in [
            None,
            b"",
            b"\xc3\x01",
            b"hello, this is text",
            good[:-1],
            good + b"\0",
            b"\xc3\x01" + b"x" * 8 + good[10:],
        ]:
            with self.assertRaises(Malformed, msg=value):
                Schemas(AVRO).decode(value)

    def test_times_are_written_as_witness_writes_them(self):
        self.assertEqual(time_text(1_784_210_602_114_208), "2026-07-16T14:03:22.114208Z")
        self.assertEqual(time_text(-1), "1969-12-31T23:59:59.999999Z")
        self.assertEqual(time_text(-30_610_224_000_000_000), "1000-01-01T00:00:00.000000Z")
        self.assertEqual(time_text(-59_011_459_200_000_000), "0100-01-01T00:00:00.000000Z")
        self.assertEqual(time_text(2**63 - 1), "9223372036854775807us")


class Comparing(unittest.TestCase):
    def differences(self, kind, data, text, is_large=False):
        return list(
            compared(
                Record(kind, "", (data["version"]["epoch"], data["version"]["offset"]), data), parsed(text), is_large
            )
        )

    def test_what_agrees_agrees(self):
        self.assertEqual(self.differences("projection", PROJECTION, answer(PROJECTION)), [])
        self.assertEqual(self.differences("fact", FACT, answer(FACT)), [])

    def test_every_difference_is_seen(self):
        changes = [
            lambda data: data.update(certainty="contested"),
            lambda data: data.update(status=None),
            lambda data: data.update(value='{"n": 9007199254740993.1}'),
            lambda data: data.update(value='{"n": "9007199254740993.10"}'),
            lambda data: data.update(as_of=1_767_225_600_000_002),
            lambda data: data["basis"].update(event_id="e2"),
            lambda data: data["contenders"].update(total=19),
            lambda data: data["contenders"].update(items=[dict(EVIDENCE, value='{"n": 1}')]),
            lambda data: data["contenders"].update(items=[dict(EVIDENCE, body_digest="00")]),
            lambda data: data["unplaced"].update(total=1),
            lambda data: data.update(needs_refresh=True),
            lambda data: data["version"].update(offset=5),
        ]
        for number, change in enumerate(changes):
            other = copy.deepcopy(PROJECTION)
            change(other)
            self.assertEqual(len(self.differences("projection", other, answer(PROJECTION))), 1, number)

    def test_a_value_too_large_to_publish_is_no_difference(self):
        left_out = dict(PROJECTION, value=None)
        self.assertEqual(self.differences("projection", left_out, answer(PROJECTION), is_large=True), [])
        self.assertEqual(len(self.differences("projection", left_out, answer(PROJECTION))), 1)

    def test_queries_are_asked_by_key(self):
        answers = {
            f"/v1/subjects/{KEY}": answer(PROJECTION),
            f"/v1/subjects/{KEY}/facts?limit=500": PAGE % ("", '"c1"'),
            f"/v1/subjects/{KEY}/facts?limit=500&after=c1": PAGE % (answer(FACT), "null"),
            "/v1/subjects?limit=500": PAGE % (answer(PROJECTION), "null"),
        }
        with Web(answers) as web:
            queries = Queries(web.url)
            self.assertEqual(queries.differences(Record("projection", KEY, (3, 4_294_967_302), PROJECTION)), [])
            self.assertEqual(queries.differences(Record("fact", KEY + "/f%2F1", (3, 7), FACT)), [])
            other = dict(FACT, fact_id="f/2")
            self.assertEqual(len(queries.differences(Record("fact", KEY + "/f%2F2", (3, 7), other))), 1)
            self.assertEqual(queries.subjects(), {KEY})


@unittest.skipIf(SERVERS is None, "KAFKA_BOOTSTRAP_SERVERS names no broker")
class FromKafka(unittest.TestCase):
    """A topic of its own, written by a transactional producer as the projector's is."""

    def setUp(self):
        from confluent_kafka import Producer
        from confluent_kafka.admin import AdminClient, NewTopic

        self.name = f"downstream-{uuid.uuid4()}"
        self.admin = AdminClient({"bootstrap.servers": SERVERS})
        settings = {"cleanup.policy": "compact"}
        for created in self.admin.create_topics([NewTopic(self.name, 3, config=settings)]).values():
            created.result()
        self.addCleanup(lambda: [gone.result() for gone in self.admin.delete_topics([self.name]).values()])
        self.producer = Producer({"bootstrap.servers": SERVERS, "transactional.id": self.name})
        self.producer.init_transactions(30)

    def write(self, records, commit=True):
        self.producer.begin_transaction()
        for partition, key, value in records:
            self.producer.produce(self.name, value, key, partition)
        self.producer.flush(30)
        if commit:
            self.producer.commit_transaction(30)
        else:
            self.producer.abort_transaction(30)

    def read(self):
        topic = read_projections.Topic(
            Namespace(bootstrap=SERVERS, topic=self.name, property=[], registry=None, schemas=AVRO, quiet=False)
        )
        self.addCleanup(topic.consumer.close)
        printed = io.StringIO()
        with redirect_stdout(printed):
            self.assertTrue(topic.read_to_end(30))
        return topic, [json.loads(line) for line in printed.getvalue().splitlines()]

    def test_only_what_was_committed_is_read(self):
        newer = dict(PROJECTION, version={"epoch": 3, "offset": 4_294_967_303})
        self.write(
            [(1, KEY, single_object("projection", PROJECTION)), (1, KEY + "/f%2F1", single_object("fact", FACT))]
        )
        self.write([(1, KEY, single_object("projection", dict(newer, status="never")))], commit=False)
        self.write([(1, KEY, single_object("projection", newer))])
        topic, lines = self.read()
        self.assertEqual(topic.problems, [])
        self.assertEqual([line["record"] for line in lines], ["projection", "fact", "projection"])
        self.assertEqual([line["status"] for line in lines if "status" in line], ["sent", "sent"])
        self.assertEqual(lines[0]["as_of"], "2026-01-01T00:00:00.000001Z")
        self.assertEqual(topic.newest[KEY][0].data, newer)
        answers = {
            f"/v1/subjects/{KEY}": answer(newer),
            f"/v1/subjects/{KEY}/facts?limit=500": PAGE % (answer(FACT), "null"),
            "/v1/subjects?limit=500": PAGE % (answer(newer), "null"),
        }
        with Web(answers) as web:
            self.assertEqual(read_projections.check(topic, Queries(web.url), 0), [])
        answers[f"/v1/subjects/{KEY}"] = answer(PROJECTION)
        answers["/v1/subjects?limit=500"] = PAGE % (answer(dict(PROJECTION, subject=dict(SUBJECT, id="m"))), "null")
        with Web(answers) as web:
            version, unpublished = read_projections.check(topic, Queries(web.url), 0)
        self.assertIn("version: published (3, 4294967303), answered (3, 4294967302)", version)
        self.assertEqual(unpublished, "acme%2Feu/ycloud/email/m: is answered and was never published")

    def test_what_is_on_its_way_is_waited_for(self):
        newer = dict(PROJECTION, version={"epoch": 3, "offset": 4_294_967_303})
        self.write([(1, KEY, single_object("projection", PROJECTION))])
        topic, _ = self.read()
        answers = {f"/v1/subjects/{KEY}": answer(newer), "/v1/subjects?limit=500": PAGE % ("", "null")}
        with Web(answers) as web, redirect_stdout(io.StringIO()):
            self.write([(1, KEY, single_object("projection", newer))])
            self.assertEqual(read_projections.check(topic, Queries(web.url), 30), [])

    def test_an_undecided_transaction_holds_back_what_follows_it(self):
        self.write([(1, KEY, single_object("projection", PROJECTION))])
        self.producer.begin_transaction()
        self.producer.produce(self.name, single_object("fact", FACT), KEY + "/f%2F1", 1)
        self.producer.flush(30)
        self.assertEqual([line["record"] for line in self.read()[1]], ["projection"])
        self.producer.commit_transaction(30)
        self.assertEqual([line["record"] for line in self.read()[1]], ["projection", "fact"])

    def test_what_must_not_happen_is_told(self):
        older = dict(PROJECTION, version={"epoch": 2, "offset": 4_294_967_303})
        self.write([(1, KEY, single_object("projection", PROJECTION)), (1, KEY, single_object("projection", older))])
        self.write([(1, "another key", single_object("fact", FACT)), (1, "empty", b""), (1, "gone", None)])
        self.write([(2, KEY, single_object("projection", PROJECTION))])
        topic, _ = self.read()
        told = "\n".join(topic.problems)
        self.assertEqual(len(topic.problems), 5, told)
        for problem in ["comes after", "is about", "neither", "no value", "before"]:
            self.assertIn(problem, told)
        self.assertEqual(topic.newest[KEY][0].version, (3, 4_294_967_302))


class Printing(unittest.TestCase):
    def test_a_line_keeps_every_digit_of_a_value(self):
        line = json.loads(json_line(Record("projection", KEY, (3, 7), PROJECTION), KEY, 1, 5))
        self.assertEqual(line["value"], '{"n": 9007199254740993.10}')
        self.assertEqual((line["key"], line["partition"], line["offset"]), (KEY, 1, 5))
        self.assertEqual(line["contenders"]["items"][0]["as_of"], "2026-01-01T00:00:00.000000Z")
        self.assertEqual(subject_key(line["subject"]), KEY)


if __name__ == "__main__":
    unittest.main()
