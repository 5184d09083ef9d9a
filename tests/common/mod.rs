//! A real `witness` for the end-to-end tests: its folder, its configuration, its processes, and a client that
//! signs as the providers do. Must never reach into the program other than through HTTP, signals and its folder.

#![allow(dead_code, reason = "a module of several test binaries, each of which uses a part")]

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use schema::Provider;
use schema::signature::Secret;
use serde_json::{Value as Json, json};
use service::clock::{Clock, SystemClock};
use tempfile::TempDir;

/// How long a start or a stop may take before the test gives up.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// Bytes an answer may have; a page of projections with large values is the greatest.
const ANSWER_BYTES_MAX: u64 = 512 * 1024 * 1024;
/// Items the reading of everything asks for at once.
const PAGE_ITEMS: usize = 100;

/// The endpoints that every installation has, one a provider: id, provider, secret.
pub(crate) const ENDPOINTS: [(&str, Provider, &str); 3] = [
    ("ycloud-main", Provider::YCloud, "whsec_a-secret-for-tests-only"),
    ("shoc-main", Provider::Shoc, "6f6e6c792d666f722d7465737473"),
    ("yutai-main", Provider::Yutai, "another-secret-for-tests-only"),
];

/// The program under test.
pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_witness");

/// The key id that SHOC signs with here.
const SHOC_KEY_ID: &str = "2026-01-01T00";

/// A folder with secrets and data, removed when dropped.
pub(crate) struct Installation {
    folder: TempDir,
}

impl Installation {
    pub(crate) fn new() -> Self {
        let folder = TempDir::new().expect("a folder");
        for (id, provider, secret) in ENDPOINTS {
            let text = match provider {
                Provider::Shoc => format!(r#"{{"keys":[{{"kid":"{SHOC_KEY_ID}","secret":"{secret}"}}]}}"#),
                Provider::YCloud | Provider::Yutai => secret.to_owned(),
            };
            fs::write(folder.path().join(id), text).expect("the secret is written");
        }
        Self { folder }
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    /// The file that sled keeps the journal in.
    pub(crate) fn journal_file(&self) -> PathBuf {
        self.path().join("journal").join("db")
    }

    /// Starts `witness up` on the journal and on the store of that name, and waits until it is ready.
    pub(crate) fn start(&self, store: &str) -> Service {
        self.start_under(&[], store)
    }

    /// Starts it under another program, such as a tracer, whose command line ends where ours begins.
    pub(crate) fn start_under(&self, wrapper: &[&str], store: &str) -> Service {
        let [ingress, projector] = [free_address(), free_address()];
        let configuration = self.configuration(&ingress, &projector, store);
        let mut service =
            self.spawn(wrapper, "up", "witness", &configuration, Client::new(ingress, projector));
        for address in [service.client.ingress.clone(), service.client.projector.clone()] {
            service.wait_for(&address, "/health/ready");
        }
        service
    }

    /// Starts a subcommand with its own configuration file and log, both named `name`, and does not wait.
    pub(crate) fn spawn(
        &self,
        wrapper: &[&str],
        subcommand: &str,
        name: &str,
        configuration: &str,
        client: Client,
    ) -> Service {
        let config = self.path().join(format!("{name}.toml"));
        fs::write(&config, configuration).expect("the configuration is written");
        let log = self.path().join(format!("{name}.log"));
        let output = File::options().create(true).append(true).open(&log).expect("the log opens");
        let words = wrapper.iter().copied().chain([PROGRAM, subcommand, "--config"]).collect::<Vec<_>>();
        let child = Command::new(words[0])
            .args(&words[1..])
            .arg(&config)
            .current_dir(self.path())
            .env("RUST_LOG", std::env::var("RUST_LOG").unwrap_or_else(|_| "warn".to_owned()))
            .stdin(Stdio::null())
            .stdout(output.try_clone().expect("the log is shared"))
            .stderr(output)
            .spawn()
            .expect("`witness` starts");
        Service { child, log, client }
    }

    fn configuration(&self, ingress: &str, projector: &str, store: &str) -> String {
        let folder = self.path().display();
        let mut text = format!(
            "[journal]\npath = \"{folder}/journal\"\npartitions = 4\n\
             [ingress]\nlisten = \"{ingress}\"\n\
             [projector]\nlisten = \"{projector}\"\nstore = \"{folder}/{store}\"\n"
        );
        text += &self.endpoints();
        text
    }

    /// The part of a configuration that names the endpoints.
    pub(crate) fn endpoints(&self) -> String {
        let folder = self.path().display();
        let mut text = String::new();
        for (id, provider, _) in ENDPOINTS {
            let source = match provider {
                Provider::Shoc => format!("keys = \"file:{folder}/{id}\""),
                Provider::YCloud | Provider::Yutai => format!("secrets = [\"file:{folder}/{id}\"]"),
            };
            let name = provider.as_str();
            text +=
                &format!("[[endpoint]]\nid = \"{id}\"\nprovider = \"{name}\"\ntenant = \"acme\"\n{source}\n");
        }
        text
    }

    /// The files that sled put beside its log, where it never syncs them.
    pub(crate) fn blob_files(&self) -> Vec<PathBuf> {
        let mut found = Vec::new();
        let mut folders = vec![self.path().to_owned()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(&folder).expect("the folder is readable") {
                let path = entry.expect("an entry").path();
                if path.is_dir() {
                    folders.push(path);
                } else if folder.file_name().is_some_and(|name| name == "blobs") {
                    found.push(path);
                }
            }
        }
        found
    }
}

/// A port that was free a moment ago. Another process may take it in between; the start then fails loudly.
pub(crate) fn free_address() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("its address").to_string()
}

fn agent() -> ureq::Agent {
    let config = ureq::Agent::config_builder().http_status_as_error(false).timeout_global(Some(PATIENCE));
    config.max_idle_connections(256).max_idle_connections_per_host(256).build().into()
}

/// A delivery to post: which endpoint, and the exact bytes.
#[derive(Clone, Debug)]
pub(crate) struct Delivery {
    pub(crate) endpoint: usize,
    pub(crate) event_id: String,
    pub(crate) body: Vec<u8>,
}

impl Delivery {
    /// A delivery about one of few subjects, so that ties, stale states, contradictions and long histories
    /// happen; now and then one of an unknown type, and one that is large.
    pub(crate) fn random(random: &mut Random, event_id: String) -> Self {
        let endpoint = random.below(ENDPOINTS.len() as u64) as usize;
        let time = format!("2026-03-01T10:00:{:02}.000Z", random.below(60));
        let number = random.below(20);
        let body = match ENDPOINTS[endpoint].1 {
            Provider::YCloud if random.below(40) == 0 => {
                json!({"id": event_id, "type": "unheard.of", "x": number})
            }
            Provider::YCloud => {
                let status = ["accepted", "sent", "delivered", "read", "failed"][random.below(5) as usize];
                let padding = if random.below(100) == 0 { 600_000 } else { 10 };
                let text = "x".repeat(padding);
                let message = json!({"id": format!("message-{number}"), "status": status, "updateTime": time, "text": text});
                json!({"id": event_id, "type": "whatsapp.message.updated", "whatsappMessage": message})
            }
            Provider::Shoc => {
                let (event_type, data) = if random.below(2) == 0 {
                    let status = ["new", "assigned", "completed", "asleep"][random.below(4) as usize];
                    let data =
                        json!({"work_order_id": number.to_string(), "wo_status": status, "updated_at": time});
                    ("work_order.updated", data)
                } else {
                    let comment = format!("{number}#{}", random.below(30));
                    let data =
                        json!({"work_order_id": number.to_string(), "comment_id": comment, "text": event_id});
                    ("work_order.comment_added", data)
                };
                json!({"schema_version": 1, "delivery_id": event_id, "event_type": event_type, "data": data})
            }
            Provider::Yutai => {
                let (kind, payload) = if random.below(2) == 0 {
                    let tier = format!("Tier {}", random.below(3));
                    (
                        "tier_changed",
                        json!({"credentialId": format!("credential-{number}"), "tier": tier, "asOf": time}),
                    )
                } else {
                    let kind = ["connect_linked", "connect_revoked"][random.below(2) as usize];
                    (kind, json!({"external_ref": format!("customer-{number}")}))
                };
                json!({"eventId": event_id, "kind": kind, "payload": payload})
            }
        };
        Self { endpoint, event_id, body: body.to_string().into_bytes() }
    }
}

/// What came back.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) text: String,
    /// Of an answer about a subject: the offset below which its partition was derived.
    pub(crate) offset: Option<u64>,
}

impl Answer {
    pub(crate) fn json(&self) -> Json {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{error}: {}", self.text))
    }
}

/// A running `witness`. Killed when dropped.
pub(crate) struct Service {
    child: Child,
    log: PathBuf,
    pub(crate) client: Client,
}

impl Drop for Service {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Service {
    /// Waits until that path of that address answers 200.
    pub(crate) fn wait_for(&mut self, address: &str, path: &str) {
        let started = Instant::now();
        loop {
            let answer = self.client.fetch(address, path);
            if answer.as_ref().is_ok_and(|answer| answer.status == 200) {
                return;
            }
            self.assert_running();
            assert!(started.elapsed() < PATIENCE, "not ready: {answer:?}\n{}", self.log_text());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Fails with its log where the process has ended by itself.
    pub(crate) fn assert_running(&mut self) {
        let status = self.child.try_wait().expect("its status");
        assert!(status.is_none(), "`witness` ended ({status:?}):\n{}", self.log_text());
    }

    /// The process's id.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn log_text(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// SIGKILL: nothing in the process runs after it.
    pub(crate) fn kill(&mut self) {
        // Both fail only where the process is gone already, which is what is wanted.
        drop(self.child.kill());
        drop(self.child.wait());
    }

    /// Sends a signal by its name.
    pub(crate) fn signal(&self, name: &str) {
        let sent = Command::new("kill").arg(format!("-{name}")).arg(self.child.id().to_string()).status();
        assert!(sent.expect("kill runs").success(), "SIG{name} could not be sent");
    }

    /// SIGTERM, and waits for the end of a graceful stop.
    pub(crate) fn stop(mut self) {
        self.signal("TERM");
        let started = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().expect("its status") {
                assert!(status.success(), "the graceful stop failed ({status}):\n{}", self.log_text());
                return;
            }
            assert!(started.elapsed() < PATIENCE, "no graceful stop:\n{}", self.log_text());
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// Posts and asks as providers and users do. Clones share their connections.
#[derive(Clone)]
pub(crate) struct Client {
    ingress: String,
    projector: String,
    agent: ureq::Agent,
}

impl Client {
    pub(crate) fn new(ingress: String, projector: String) -> Self {
        Self { ingress, projector, agent: agent() }
    }

    /// Of a process that listens on one address.
    pub(crate) fn of(address: &str) -> Self {
        Self::new(address.to_owned(), address.to_owned())
    }

    /// Posts a delivery signed now by its endpoint's provider.
    pub(crate) fn post(&self, delivery: &Delivery) -> Result<Answer, String> {
        self.post_signed(delivery, ENDPOINTS[delivery.endpoint].2)
    }

    /// Posts a delivery signed by someone who does not know the secret.
    pub(crate) fn post_forged(&self, delivery: &Delivery) -> Result<Answer, String> {
        self.post_signed(delivery, "not the secret")
    }

    fn post_signed(&self, delivery: &Delivery, secret: &str) -> Result<Answer, String> {
        let (id, provider, _) = ENDPOINTS[delivery.endpoint];
        let secret = Secret::new(SHOC_KEY_ID, secret.as_bytes().to_vec()).expect("a secret");
        let now_seconds = SystemClock.now().0 / 1_000_000;
        let mut request = self
            .agent
            .post(format!("http://{}/webhooks/{id}", self.ingress))
            .header("Content-Type", "application/json");
        for (name, value) in provider.contract().sign(&secret, now_seconds, &delivery.body) {
            request = request.header(name, value);
        }
        answer(request.send(&delivery.body[..]))
    }

    /// Asks the projector.
    pub(crate) fn get(&self, path: &str) -> Answer {
        self.try_get(path).unwrap_or_else(|error| panic!("{path}: {error}"))
    }

    /// Asks the projector, which may not be there.
    pub(crate) fn try_get(&self, path: &str) -> Result<Answer, String> {
        self.fetch(&self.projector, path)
    }

    /// Asks the projector for what it can answer itself: another one that has the answer is not asked.
    pub(crate) fn try_get_own(&self, path: &str) -> Result<Answer, String> {
        let url = format!("http://{}{path}", self.projector);
        answer(self.agent.get(url).header("Witness-Forwarded", "1").call())
    }

    /// Has the projector derive its store anew, and waits until the new one is live. Equal digests are its own
    /// condition for that.
    pub(crate) fn rebuild(&self) {
        let url = format!("http://{}/v1/rebuild", self.projector);
        let begun = answer(self.agent.post(&url).send_empty()).expect("an answer");
        assert_eq!(begun.status, 202, "{}", begun.text);
        let started = Instant::now();
        loop {
            let status = self.get("/v1/rebuild").json();
            if status["phase"] == "done" {
                return;
            }
            assert!(status["phase"] != "failed" && started.elapsed() < PATIENCE, "not rebuilt: {status}");
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    fn fetch(&self, address: &str, path: &str) -> Result<Answer, String> {
        answer(self.agent.get(format!("http://{address}{path}")).call())
    }

    /// Every page of a list.
    pub(crate) fn pages(&self, path: &str) -> Vec<String> {
        let mut pages = Vec::new();
        let mut query = format!("?limit={PAGE_ITEMS}");
        loop {
            let answer = self.get(&format!("{path}{query}"));
            assert_eq!(answer.status, 200, "{path}{query}: {}", answer.text);
            let next = answer.json()["next"].as_str().map(str::to_owned);
            pages.push(answer.text);
            match next {
                Some(cursor) => {
                    query = format!("?limit={PAGE_ITEMS}&after={}", schema::subject::encoded(&cursor))
                }
                None => return pages,
            }
        }
    }

    /// All that the projector can be asked, as the exact texts of its answers by path: the list of
    /// subjects, attention, and each subject with its history and its facts.
    pub(crate) fn everything(&self) -> BTreeMap<String, Vec<String>> {
        let subjects = self.pages("/v1/subjects");
        let mut answers = BTreeMap::new();
        for subject in items(&subjects) {
            let part =
                |name: &str| schema::subject::encoded(subject["subject"][name].as_str().expect("text"));
            let path = ["tenant", "provider", "kind", "id"].map(part).join("/");
            let path = format!("/v1/subjects/{path}");
            let current = self.get(&path);
            assert_eq!(current.status, 200, "{path}: {}", current.text);
            answers.insert(format!("{path}/history"), self.pages(&format!("{path}/history")));
            answers.insert(format!("{path}/facts"), self.pages(&format!("{path}/facts")));
            answers.insert(path, vec![current.text]);
        }
        answers.insert("/v1/subjects".to_owned(), subjects);
        answers.insert("/v1/attention".to_owned(), self.pages("/v1/attention"));
        answers
    }
}

fn answer(response: Result<ureq::http::Response<ureq::Body>, ureq::Error>) -> Result<Answer, String> {
    let mut response = response.map_err(|error| error.to_string())?;
    let text = response.body_mut().with_config().limit(ANSWER_BYTES_MAX).read_to_string();
    let offset = response.headers().get("witness-offset");
    let offset =
        offset.map(|value| value.to_str().ok().and_then(|text| text.parse().ok()).expect("an offset"));
    let text = text.map_err(|error| error.to_string())?;
    Ok(Answer { status: response.status().as_u16(), text, offset })
}

/// The items of a list's pages.
pub(crate) fn items(pages: &[String]) -> Vec<Json> {
    let pages = pages.iter().map(|page| serde_json::from_str::<Json>(page).expect("a page is JSON"));
    pages.flat_map(|mut page| std::mem::take(page["items"].as_array_mut().expect("a list"))).collect()
}

/// Numbers that look random and are the same for the same seed (SplitMix64).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }
}
