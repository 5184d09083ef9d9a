//! One run: a scheduler that decides from one seed who acts next and what goes wrong, around the services' own code.
//! Must never ask the machine for time, randomness or order, and never let two things happen at once.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::{Request, StatusCode};
use futures_util::future::join;
use ingress::{Endpoint, Secrets};
use journal::{Topic, disk};
use metrics_exporter_prometheus::PrometheusBuilder;
use projector::Config;
use projector::run::Runner;
use schema::signature::Secret;
use schema::{Digest, Micros};
use service::clock::ManualClock;
use service::ids::Ids;
use tokio::runtime::Runtime;
use tower::ServiceExt;
use uuid::Uuid;

use crate::check::{self, Published};
use crate::cluster::{Cluster, Fate, INSTANCES, PARTITIONS};
use crate::model::Model;
use crate::provider::{ENDPOINTS, Heard, KEY_ID, Providers};
use crate::random::Random;
use crate::troubles::{Trouble, Troubles};

const REPLICAS: usize = 2;
const SECOND: i64 = 1_000_000;
const BEGIN: i64 = 1_772_359_200 * SECOND;
const TOLERANCE_SECONDS: u64 = 300;
/// Steps that settling may take at most.
const SETTLE_STEPS: usize = 3_000;

/// Everything.
pub struct World {
    random: Random,
    now: i64,
    folder: tempfile::TempDir,
    cluster: Cluster,
    ids: Arc<Numbered>,
    replicas: Vec<Replica>,
    instances: Vec<Instance>,
    providers: Providers,
    model: Model,
    /// How far the model has read, by topic and partition.
    read: [[u64; PARTITIONS.get() as usize]; 2],
    published: Published,
    sessions: u64,
    pub deliveries: u64,
    pub steps: u64,
    /// A digest of all that happened: the same for the same seed.
    pub trace: Digest,
}

/// One ingress.
struct Replica {
    clock: Arc<ManualClock>,
    skew: i64,
    running: Option<(Router, Runtime)>,
}

/// One projector.
struct Instance {
    folder: PathBuf,
    old_copy: Option<PathBuf>,
    clock: Arc<ManualClock>,
    skew: i64,
    session: u64,
    runner: Option<Runner>,
    /// How far its store was checked.
    checked: [u64; PARTITIONS.get() as usize],
}

/// Ids in the order of their making.
struct Numbered(AtomicU64);

impl Ids for Numbered {
    fn uuid_v7(&self, now: Micros) -> Uuid {
        let number = self.0.fetch_add(1, Ordering::Relaxed);
        let millis = u128::try_from(now.0 / 1_000).expect("after 1970");
        Uuid::from_u128(millis << 80 | 0x7 << 76 | 0x2 << 62 | u128::from(number))
    }
}

/// How an answer to a delivery reached its provider.
enum Answered {
    /// Nothing did.
    Not,
    With(StatusCode, Vec<u8>),
}

impl World {
    pub fn new(seed: u64) -> Self {
        let mut random = Random(seed);
        let cluster = Cluster::new(random.below(u64::MAX));
        let providers = Providers::new(random.below(u64::MAX));
        // In memory, where there is such a place: what is durable is the simulation's to say.
        let memory = Path::new("/dev/shm");
        let folder = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
        let folder = folder.expect("a folder");
        let replicas = (0..REPLICAS).map(|_| Replica { clock: Arc::default(), skew: 0, running: None });
        let instances = (0..INSTANCES).map(|number| Instance {
            folder: folder.path().join(format!("projector-{number}")),
            old_copy: None,
            clock: Arc::default(),
            skew: 0,
            session: 0,
            runner: None,
            checked: [0; PARTITIONS.get() as usize],
        });
        Self {
            random,
            now: BEGIN,
            cluster,
            ids: Arc::new(Numbered(AtomicU64::new(1))),
            replicas: replicas.collect(),
            instances: instances.collect(),
            providers,
            model: Model::default(),
            read: [[0; PARTITIONS.get() as usize]; 2],
            published: Published::default(),
            sessions: 0,
            deliveries: 0,
            steps: 0,
            trace: Digest::of(b""),
            folder,
        }
    }

    /// What has gone wrong so far.
    pub fn troubles(&self) -> Troubles {
        let mut troubles = self.cluster.state().troubles.clone();
        check::count_cross_partition(&self.model, &mut troubles);
        troubles
    }

    /// One thing happens, and everything is looked at.
    pub fn act(&mut self) {
        self.steps += 1;
        self.now += self.random.below(300_000) as i64;
        match self.random.below(1_000) {
            0..620 => self.deliver(),
            620..900 => {
                let instance = self.random.below(INSTANCES as u64) as usize;
                self.step(instance);
            }
            900..920 => {
                let arrives = self.random.below(4) != 0;
                self.cluster.state().late_append(arrives);
            }
            920..930 => {
                let replica = self.random.below(REPLICAS as u64) as usize;
                self.note(format_args!("replica {replica} ends"));
                self.replicas[replica].running = None;
                self.trouble(Trouble::IngressCrash);
            }
            930..945 => {
                let instance = self.random.below(INSTANCES as u64) as usize;
                self.trouble(Trouble::Crash);
                self.crash(instance);
            }
            945..960 => self.reassign(),
            960..966 => self.expel(),
            966..976 => self.skew(),
            976..980 => {
                let partition = self.random.below(u64::from(PARTITIONS.get())) as u32;
                self.cluster.state().scribble(partition);
            }
            _ => {
                // A quiet time: until something is due, and now and then for hours.
                let due = self.providers.next_due().unwrap_or(self.now);
                let hours = if self.random.below(4) == 0 { self.random.below(10_000) as i64 } else { 0 };
                self.now = self.now.max(due) + (hours + self.random.below(20) as i64) * SECOND;
            }
        }
        self.look();
    }

    /// The log since it was last looked at, and what was published meanwhile.
    fn look(&mut self) {
        let mut state = self.cluster.state();
        let mut troubles = std::mem::take(&mut state.troubles);
        for (number, topic) in [Topic::Observations, Topic::Claims].into_iter().enumerate() {
            for partition in 0..PARTITIONS.get() {
                let read = &mut self.read[number][partition as usize];
                for record in state.records(topic, partition, *read) {
                    let digest = Digest::of(&record.value);
                    self.trace = Digest::of(
                        format!("{} {topic} {partition} {} {digest}", self.trace, record.offset).as_bytes(),
                    );
                    match topic {
                        Topic::Observations => self.model.observation(partition, record, &mut troubles),
                        Topic::Claims | Topic::Projections => self.model.claim(record),
                    }
                    *read = record.offset + 1;
                }
            }
        }
        let published = std::mem::take(&mut state.published);
        state.troubles = troubles;
        drop(state);
        for (topic, before, publication) in published {
            if topic == Topic::Observations {
                self.published.take(&self.model, before, &publication);
            }
        }
    }

    fn trouble(&self, trouble: Trouble) {
        self.cluster.state().troubles.count(trouble);
    }

    /// What happens is a part of the trace, and shown where it is asked for.
    fn note(&mut self, what: std::fmt::Arguments<'_>) {
        let text = format!("{} at {} {what}", self.steps, self.now - BEGIN);
        if std::env::var_os("WITNESS_TRACE").is_some() {
            println!("{text}");
        }
        self.trace = Digest::of(format!("{} {text}", self.trace).as_bytes());
    }

    // The providers and the doors.

    fn deliver(&mut self) {
        if self.random.below(3) != 0 || self.providers.is_done() {
            self.providers.tell(self.now);
        }
        self.attempt();
    }

    /// One attempt of what is due, if anything is.
    fn attempt(&mut self) {
        let Some(mut delivery) = self.providers.take(self.now) else { return };
        let (id, provider, secret) = ENDPOINTS[delivery.endpoint];
        let body = delivery.body.to_string();
        let now_seconds = self.now.div_euclid(SECOND);
        // Something between us and the provider sends a request once more, as it was.
        let calm = self.cluster.state().calm;
        let old = delivery.signed.take().filter(|_| !calm && self.random.below(3) == 0);
        let (signed_at, headers) = old.unwrap_or_else(|| {
            let secret = Secret::new(KEY_ID, secret.as_bytes().to_vec()).expect("a secret");
            (now_seconds, provider.contract().sign(&secret, now_seconds, body.as_bytes()))
        });
        let replica = self.random.below(REPLICAS as u64) as usize;
        let door_seconds = (self.now + self.replicas[replica].skew).div_euclid(SECOND);
        let is_stale = door_seconds.abs_diff(signed_at) > TOLERANCE_SECONDS;
        let request = || {
            let mut request =
                Request::post(format!("/webhooks/{id}")).header("content-type", "application/json");
            for (name, value) in &headers {
                request = request.header(*name, value);
            }
            request.body(Body::from(body.clone())).expect("a request")
        };
        let answers = self.post(replica, request);
        let digest = Digest::of(body.as_bytes());
        let mut heard = Heard::Failed;
        for answer in answers {
            self.deliveries += 1;
            let Answered::With(status, text) = answer else { continue };
            assert_eq!(
                status == StatusCode::UNAUTHORIZED,
                is_stale,
                "{status} at {door_seconds}, signed {signed_at}"
            );
            if is_stale && signed_at != now_seconds {
                self.trouble(Trouble::StaleSigned);
            }
            if status == StatusCode::OK {
                self.acknowledged(&text, digest);
            }
            heard = match status.as_u16() {
                200 => Heard::Accepted,
                429 | 500.. => Heard::Failed,
                _ => Heard::Refused,
            };
        }
        assert!(
            !calm || heard == Heard::Accepted,
            "nothing goes wrong, and {} is not accepted",
            delivery.event_id
        );
        if heard == Heard::Accepted && !calm && self.random.below(20) == 0 {
            self.trouble(Trouble::LostAnswer);
            heard = Heard::Failed;
        }
        self.note(format_args!("{} of {id} at replica {replica}: {heard:?}", delivery.event_id));
        delivery.signed = Some((signed_at, headers));
        self.providers.heard(delivery, heard, self.now);
    }

    /// Acknowledged ⇒ in the log.
    fn acknowledged(&mut self, answer: &[u8], body: Digest) {
        let answer: serde_json::Value = serde_json::from_slice(answer).expect("JSON");
        let id = answer["observation_id"].as_str().and_then(|id| Uuid::parse_str(id).ok());
        let id = id.expect("an observation's id");
        self.look();
        assert_eq!(
            self.model.bodies.get(&id),
            Some(&body),
            "acknowledged observation {id} is not in the log"
        );
    }

    /// Posts once, or twice at once; the replica may end before it has answered, and its client may go away.
    fn post(&mut self, replica: usize, request: impl Fn() -> Request<Body>) -> Vec<Answered> {
        let calm = self.cluster.state().calm;
        let fate = self.random.below(if calm { 1 } else { 40 });
        let patience = Duration::from_millis(self.random.below(8_000));
        let (router, runtime) = self.door(replica);
        let answered = async |router: Router, request: Request<Body>| {
            let response = router.oneshot(request).await.expect("it always answers");
            let status = response.status();
            let body = to_bytes(response.into_body(), 1 << 20).await.expect("a body");
            Answered::With(status, body.to_vec())
        };
        let answers = match fate {
            // The client goes away before it is answered, unless the answer comes first.
            1..4 => runtime.block_on(async {
                let answer = tokio::time::timeout(patience, answered(router, request())).await;
                vec![answer.unwrap_or(Answered::Not)]
            }),
            4..7 => runtime.block_on(async {
                let (one, other) =
                    join(answered(router.clone(), request()), answered(router, request())).await;
                vec![one, other]
            }),
            _ => runtime.block_on(async { vec![answered(router, request()).await] }),
        };
        // It had done its work, and nobody heard of it.
        if fate == 39 {
            self.replicas[replica].running = None;
            self.trouble(Trouble::IngressCrash);
            return vec![Answered::Not];
        }
        answers
    }

    /// A replica, started if it does not run.
    fn door(&mut self, number: usize) -> (Router, &Runtime) {
        let replica = &mut self.replicas[number];
        replica.clock.set(Micros(self.now + replica.skew));
        let (router, runtime) = replica.running.get_or_insert_with(|| {
            let endpoints = ENDPOINTS.map(|(id, provider, secret)| Endpoint {
                id: id.to_owned(),
                provider,
                tenant: "acme".to_owned(),
                secrets: Secrets::Fixed(vec![
                    Secret::new(KEY_ID, secret.as_bytes().to_vec()).expect("a secret"),
                ]),
                tolerance_seconds: TOLERANCE_SECONDS,
                body_bytes_max: 1 << 20,
                rate: None,
            });
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
            let metrics = PrometheusBuilder::new().build_recorder().handle();
            let config = ingress::Config::new(endpoints.into());
            let (clock, ids) = (replica.clock.clone(), self.ids.clone());
            let router = ingress::router(config, self.cluster.door(), clock, ids, metrics);
            (router.expect("endpoints of different ids"), runtime.expect("a runtime"))
        });
        (router.clone(), runtime)
    }

    // The projectors.

    /// One step of a projector, in which it may end at any write.
    fn step(&mut self, number: usize) {
        let calm = self.cluster.state().calm;
        if !self.open(number) {
            return;
        }
        let (fate, writes) = if calm {
            (Fate::Committed, None)
        } else {
            let fate = match self.random.below(30) {
                0 | 1 => Fate::Aborted,
                2 => Fate::Lost,
                3 => Fate::Unknown,
                4 => Fate::Expelled,
                _ => Fate::Committed,
            };
            let ends = self.random.below(20) == 0;
            (fate, ends.then(|| self.random.below(5) as u32))
        };
        let mut state = self.cluster.state();
        state.publication = fate;
        state.has_ended = false;
        drop(state);
        let instance = &mut self.instances[number];
        instance.clock.set(Micros(self.now + instance.skew));
        let runner = instance.runner.as_mut().expect("it is open");
        disk::simulation::writes_left(writes);
        let stepped = runner.step(Duration::ZERO);
        let unsynced = disk::simulation::unsynced();
        disk::simulation::writes_left(None);
        let has_ended = std::mem::take(&mut self.cluster.state().has_ended);
        self.note(format_args!("projector {number}: {:?}, {has_ended}, {fate:?}", stepped.is_ok()));
        match stepped {
            // A verdict that failed is tried again by who has not ended.
            Ok(_) if has_ended => return self.crash(number),
            Ok(_) => {
                assert_eq!(unsynced, 0, "a step ended with writes that are not on the disk");
            }
            Err(error) => {
                assert!(writes.is_some() || has_ended, "the store failed by itself: {error}");
                self.trouble(if has_ended { Trouble::CrashAfterVerdict } else { Trouble::CrashInWrite });
                // What was applied and not synced may be there, or not: all of it is looked at anew.
                self.instances[number].checked = [0; PARTITIONS.get() as usize];
                return self.crash(number);
            }
        }
        self.look();
        self.check_store(number);
        if !calm && self.random.below(2) == 0 {
            match fate {
                Fate::Lost | Fate::Unknown => {
                    self.trouble(Trouble::CrashInPublication);
                    self.crash(number);
                }
                Fate::Aborted | Fate::Expelled | Fate::Committed => {}
            }
        }
    }

    fn check_store(&mut self, number: usize) {
        let instance = &mut self.instances[number];
        let Some(runner) = &instance.runner else { return };
        for partition in 0..PARTITIONS.get() {
            let checked = &mut instance.checked[partition as usize];
            let next_offset = check::store(&runner.store(), &self.model, partition, *checked);
            assert!(next_offset >= *checked, "projector {number} fell from {checked} to {next_offset}");
            *checked = next_offset;
            let stopped = runner.progress().of(partition).and_then(|place| place.stopped);
            assert_eq!(stopped, None, "partition {partition} of projector {number} stopped");
        }
        assert_eq!(runner.progress().claims_problems(), Vec::<String>::new());
    }

    /// The projector ends without another word.
    fn crash(&mut self, number: usize) {
        let instance = &mut self.instances[number];
        if instance.runner.take().is_none() {
            return;
        }
        let session = instance.session;
        self.cluster.state().leave(session, false);
        self.note(format_args!("projector {number} ends"));
        let instance = &mut self.instances[number];
        match self.random.below(10) {
            // Its disk is lost.
            0 => {
                fs::remove_dir_all(&instance.folder).expect("the folder can be removed");
                instance.checked = [0; PARTITIONS.get() as usize];
                self.trouble(Trouble::StoreLost);
            }
            // Its disk comes back as it was some time ago.
            1..4 => match instance.old_copy.take() {
                Some(old) => {
                    fs::remove_dir_all(&instance.folder).expect("the folder can be removed");
                    fs::rename(old, &instance.folder).expect("the folder can be renamed");
                    instance.checked = [0; PARTITIONS.get() as usize];
                    self.trouble(Trouble::StoreOld);
                }
                None => {
                    let copy = self.folder.path().join(format!("copy-{number}"));
                    copy_folder(&instance.folder, &copy);
                    instance.old_copy = Some(copy);
                }
            },
            _ => {}
        }
    }

    /// Starts a projector that does not run. Answers whether it runs.
    fn open(&mut self, number: usize) -> bool {
        if self.instances[number].runner.is_some() {
            return true;
        }
        self.sessions += 1;
        let session = self.sessions;
        let instance = &mut self.instances[number];
        instance.session = session;
        instance.clock.set(Micros(self.now + instance.skew));
        let config = Config { publish: true, ..Config::new(&instance.folder, PARTITIONS) };
        let journal = self.cluster.journal(number, session);
        let stop = Arc::new(AtomicBool::new(false));
        let runner = Runner::open(&config, journal, instance.clock.clone(), stop);
        instance.runner = Some(runner.expect("the store opens"));
        self.check_store(number);
        true
    }

    /// A partition moves to another projector.
    fn reassign(&mut self) {
        let topic = [Topic::Observations, Topic::Claims][self.random.below(2) as usize];
        let partition = self.random.below(u64::from(PARTITIONS.get())) as u32;
        let instance = self.random.below(INSTANCES as u64) as usize;
        self.cluster.state().assign(topic, partition, instance);
        self.trouble(Trouble::Reassignment);
        self.note(format_args!("{topic} {partition} goes to projector {instance}"));
    }

    /// A projector is taken for dead: others get its partitions, and it does not know.
    fn expel(&mut self) {
        let number = self.random.below(INSTANCES as u64) as usize;
        if self.instances[number].runner.is_none() {
            return;
        }
        let mut state = self.cluster.state();
        state.leave(self.instances[number].session, true);
        for topic in [Topic::Observations, Topic::Claims] {
            for partition in 0..PARTITIONS.get() {
                if state.target(topic, partition) == number {
                    let instance = self.random.below(INSTANCES as u64) as usize;
                    state.assign(topic, partition, instance);
                }
            }
        }
        drop(state);
        self.note(format_args!("projector {number} is expelled"));
    }

    /// A clock goes wrong, and the others of its kind right again.
    fn skew(&mut self) {
        let skew = match self.random.below(4) {
            0 | 1 => 0,
            2 => self.random.below(500) as i64 * SECOND - 250 * SECOND,
            _ => self.random.below(1_200) as i64 * SECOND - 600 * SECOND,
        };
        if skew != 0 {
            self.trouble(Trouble::ClockSkew);
        }
        if self.random.below(2) == 0 {
            self.replicas.iter_mut().for_each(|replica| replica.skew = 0);
            self.replicas[self.random.below(REPLICAS as u64) as usize].skew = skew;
        } else {
            self.instances.iter_mut().for_each(|instance| instance.skew = 0);
            self.instances[self.random.below(INSTANCES as u64) as usize].skew = skew;
        }
    }

    // The end.

    /// Nothing goes wrong any more: everything that providers still try arrives, every projector reads everything, and
    /// all of them know the same.
    pub fn settle(&mut self) {
        self.cluster.state().calm = true;
        for replica in &mut self.replicas {
            replica.skew = 0;
        }
        while let Some(due) = self.providers.next_due() {
            self.now = self.now.max(due);
            self.attempt();
        }
        while self.cluster.state().has_late() {
            self.cluster.state().late_append(true);
        }
        self.crash(0);
        let _ = fs::remove_dir_all(&self.instances[0].folder);
        self.instances[0].checked = [0; PARTITIONS.get() as usize];
        // The last one derives everything anew. Verdicts that it writes are news for the others.
        (0..INSTANCES).rev().for_each(|number| self.read_everything(number));
        for number in (0..INSTANCES).rev() {
            if !self.has_read_everything(number) {
                self.read_everything(number);
            }
        }

        check::verdicts(&self.model);
        check::published(&self.model, &self.published, &self.cluster);
        for partition in 0..PARTITIONS.get() {
            let end = self
                .cluster
                .state()
                .records(Topic::Observations, partition, 0)
                .last()
                .map(|last| last.offset + 1);
            let committed = self.cluster.state().committed(Topic::Observations, partition);
            assert_eq!(committed, Some(end.unwrap_or(0)), "the group's offset of partition {partition}");
        }
        let stores: Vec<_> =
            self.instances.iter().filter_map(|of| Some(of.runner.as_ref()?.store())).collect();
        assert_eq!(stores.len(), INSTANCES);
        let of = |store| {
            let partitions = (0..PARTITIONS.get()).map(|partition| check::everything(store, partition));
            (partitions.collect::<Vec<_>>(), check::claims(store, &self.model))
        };
        let first = of(&stores[0]);
        for store in &stores[1..] {
            assert!(of(store) == first, "at rest, the stores differ");
        }
    }

    fn has_read_everything(&self, number: usize) -> bool {
        let Some(runner) = &self.instances[number].runner else { return false };
        let (store, state) = (runner.store(), self.cluster.state());
        (0..PARTITIONS.get()).all(|partition| {
            let read = store.read().meta(partition).expect("readable").next_offset;
            let judged = store.claims_meta(partition).expect("readable").next_offset;
            state.records(Topic::Observations, partition, read).is_empty()
                && state.records(Topic::Claims, partition, judged).is_empty()
        })
    }

    /// One projector gets all partitions, and reads until there is nothing more.
    fn read_everything(&mut self, number: usize) {
        for topic in [Topic::Observations, Topic::Claims] {
            (0..PARTITIONS.get()).for_each(|partition| self.cluster.state().assign(topic, partition, number));
        }
        // The others give up what they hold.
        (0..INSTANCES).for_each(|other| self.settle_step(other));
        let mut quiet = 0;
        for _ in 0..SETTLE_STEPS {
            let before = self.position(number);
            self.settle_step(number);
            quiet = if self.position(number) == before { quiet + 1 } else { 0 };
            if quiet == 8 {
                return;
            }
        }
        panic!("projector {number} has no rest");
    }

    fn settle_step(&mut self, number: usize) {
        self.now += 2 * SECOND;
        self.steps += 1;
        self.step(number);
    }

    /// How far a projector, the groups and the log are.
    fn position(&self, number: usize) -> Vec<Option<u64>> {
        let store = self.instances[number].runner.as_ref().map(Runner::store);
        let mut position = Vec::new();
        for partition in 0..PARTITIONS.get() {
            let store = store.as_ref();
            position.push(store.map(|store| store.read().meta(partition).expect("readable").next_offset));
            position.push(store.map(|store| store.claims_meta(partition).expect("readable").next_offset));
            let state = self.cluster.state();
            for topic in [Topic::Observations, Topic::Claims] {
                position.push(state.committed(topic, partition));
                position.push(Some(state.end(topic, partition)));
            }
        }
        position
    }
}

fn copy_folder(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a folder");
    for entry in fs::read_dir(from).expect("readable") {
        let entry = entry.expect("an entry");
        let target = to.join(entry.file_name());
        if entry.file_type().expect("a type").is_dir() {
            copy_folder(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).expect("copied");
        }
    }
}
