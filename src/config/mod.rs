//! The configuration: one TOML file, overridden by `WITNESS__…` variables, checked whole before anything
//! starts. Must never guess what a key may have meant, never let a value pass unread, and never show a
//! secret in a message.

mod journal;
mod overrides;
mod shape;

use std::fs;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ingress::KeyDocument;
use ingress::secrets::SecretReference;
use schema::Provider;
use schema::limits::TOLERANCE_SECONDS_DEFAULT;
use schema::provider::parse_key_document;
use schema::signature::Secret;

pub(crate) use self::journal::{Journal, Kafka};
use crate::wrong_use::WrongUse;
use shape::{EndpointShape, FileShape, IngressShape, ProjectorShape, RateShape};

/// The file that is read when none is named.
pub(crate) const FILE_DEFAULT: &str = "witness.toml";

/// Seconds of tolerance: up to a week, for a provider that retries for days without signing again.
const TOLERANCE_SECONDS: RangeInclusive<u64> = 1..=604_800;
/// Bytes a body may have; one record of the journal must hold it with room to spare.
const BODY_BYTES: RangeInclusive<u64> = 1..=8 * 1024 * 1024;
/// Deliveries a second, and in one burst.
const RATE: RangeInclusive<u64> = 1..=1_000_000;
/// More often than this nobody imports or resets a log.
const EPOCH_MAX: u32 = 1_000_000;

/// Characters an endpoint's id or a tenant may have.
const ID_CHARACTERS: RangeInclusive<usize> = 1..=64;

/// A configuration whose every value was checked. Secrets are only named in it; [`Endpoint::resolve`] and
/// [`Config::token`] read them.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    /// Where it was read, for messages.
    pub(crate) file: PathBuf,
    pub(crate) journal: Journal,
    pub(crate) ingress_listen: SocketAddr,
    pub(crate) projector: Projector,
    /// At least one; no two of one id.
    pub(crate) endpoints: Vec<Endpoint>,
}

/// The projector and its HTTP answers.
#[derive(Clone, Debug)]
pub(crate) struct Projector {
    pub(crate) listen: SocketAddr,
    pub(crate) store: PathBuf,
    group: String,
    instance_id: Option<String>,
    advertise: Option<String>,
    /// Added to the epoch of this release's derivation.
    pub(crate) epoch: u32,
    token: Option<SecretReference>,
}

/// One receiver.
#[derive(Clone, Debug)]
pub(crate) struct Endpoint {
    file: PathBuf,
    pub(crate) id: String,
    pub(crate) provider: Provider,
    pub(crate) tenant: String,
    secrets: Secrets,
    tolerance_seconds: u64,
    body_bytes_max: usize,
    rate: Option<ingress::Rate>,
}

#[derive(Clone, Debug)]
enum Secrets {
    /// Every one may have signed; the first signs for `witness send`.
    Listed(Vec<SecretReference>),
    /// SHOC's key document.
    Document(SecretReference),
}

impl Config {
    /// Reads `file`, lets the `WITNESS__…` variables of `environment` override it, and checks the whole.
    pub(crate) fn load(
        file: &Path,
        environment: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Self, WrongUse> {
        let text = fs::read_to_string(file).map_err(|error| unreadable(file, &error))?;
        Self::parse(file, &text, environment)
    }

    fn parse(
        file: &Path,
        text: &str,
        environment: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Self, WrongUse> {
        let mut shape = shape::parse(file, text)?;
        overrides::apply(&mut shape, environment)?;
        Checker { file }.config(shape)
    }

    /// The endpoint of that id.
    pub(crate) fn endpoint(&self, id: &str) -> Result<&Endpoint, WrongUse> {
        self.endpoints.iter().find(|endpoint| endpoint.id == id).ok_or_else(|| {
            let known: Vec<&str> = self.endpoints.iter().map(|endpoint| endpoint.id.as_str()).collect();
            WrongUse(format!(
                "{}: there is no endpoint \"{id}\"; the endpoints are: {}",
                self.file.display(),
                known.join(", ")
            ))
        })
    }

    /// The projector's configuration, without its token.
    pub(crate) fn projector_config(&self) -> projector::Config {
        let config = projector::Config::new(&self.projector.store, self.journal.partitions());
        projector::Config { epoch: self.projector.epoch, ..config }
    }

    /// The bearer token that queries must carry; `None` where they need none.
    pub(crate) async fn token(&self) -> Result<Option<String>, WrongUse> {
        let Some(reference) = &self.projector.token else { return Ok(None) };
        let check = Checker { file: &self.file };
        let token = reference.fetch().await.map_err(|error| check.because("projector.token", error))?;
        if token.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Ok(Some(token));
        }
        let problem = "must be visible ASCII without spaces, because it travels in a header";
        Err(check.refuse("projector.token", format_args!("({reference}) {problem}")))
    }
}

impl Endpoint {
    /// Reads the secrets, and so makes the endpoint ready to receive.
    pub(crate) async fn resolve(&self) -> Result<ingress::Endpoint, WrongUse> {
        let candidates = self.candidates().await?;
        Ok(ingress::Endpoint {
            id: self.id.clone(),
            provider: self.provider,
            tenant: self.tenant.clone(),
            secrets: match &self.secrets {
                Secrets::Listed(_) => ingress::Secrets::Fixed(candidates),
                // Read here only to refuse a useless document at once; the door fetches it anew.
                Secrets::Document(reference) => ingress::Secrets::Document(Arc::new(reference.clone())),
            },
            tolerance_seconds: self.tolerance_seconds,
            body_bytes_max: self.body_bytes_max,
            rate: self.rate,
        })
    }

    /// The secret that this endpoint's provider signs with (SHOC contract §6.1: the first key).
    pub(crate) async fn signing_secret(&self) -> Result<Secret, WrongUse> {
        let candidates = self.candidates().await?;
        let check = Checker { file: &self.file };
        candidates.into_iter().next().ok_or_else(|| check.refuse(&self.key("secrets"), "lists no secret"))
    }

    async fn candidates(&self) -> Result<Vec<Secret>, WrongUse> {
        let check = Checker { file: &self.file };
        match &self.secrets {
            Secrets::Listed(references) => {
                let secrets = references.iter().map(SecretReference::secret);
                secrets.collect::<Result<_, _>>().map_err(|error| check.because(&self.key("secrets"), error))
            }
            Secrets::Document(reference) => {
                let key = self.key("keys");
                let text = reference.fetch().await.map_err(|error| check.because(&key, error))?;
                let parsed = parse_key_document(&text);
                parsed.map_err(|error| check.because(&key, format_args!("{reference}: {error}")))
            }
        }
    }

    fn key(&self, name: &str) -> String {
        format!("endpoint.{}.{name}", self.id)
    }
}

fn unreadable(file: &Path, error: &std::io::Error) -> WrongUse {
    let name = file.display();
    WrongUse(if error.kind() == std::io::ErrorKind::NotFound {
        format!(
            "there is no configuration file {name}; copy witness.example.toml to {name} and edit it, or name another file with --config"
        )
    } else {
        format!("cannot read the configuration file {name}: {error}; it must be a readable UTF-8 text file")
    })
}

/// Turns what the file said into a configuration, or says what is wrong with it.
struct Checker<'a> {
    file: &'a Path,
}

impl Checker<'_> {
    fn refuse(&self, key: &str, problem: impl std::fmt::Display) -> WrongUse {
        WrongUse(format!("{}: `{key}` {problem}", self.file.display()))
    }

    fn because(&self, key: &str, error: impl std::fmt::Display) -> WrongUse {
        WrongUse(format!("{}: `{key}`: {error}", self.file.display()))
    }

    fn config(&self, shape: FileShape) -> Result<Config, WrongUse> {
        let FileShape { journal, ingress, projector, endpoint } = shape;
        let IngressShape { listen } = ingress;
        let ingress_listen = self.address("ingress.listen", listen, "127.0.0.1:8080")?;
        let projector = self.projector(projector)?;
        if projector.listen == ingress_listen && ingress_listen.port() != 0 {
            return Err(
                self.refuse("projector.listen", "is the address of `ingress.listen`; give it another port")
            );
        }
        if endpoint.is_empty() {
            return Err(WrongUse(format!(
                "{}: there is no endpoint; add an [[endpoint]] with id, provider, tenant and secrets (shoc: keys)",
                self.file.display()
            )));
        }
        let mut endpoints: Vec<Endpoint> = Vec::with_capacity(endpoint.len());
        for (index, shape) in endpoint.into_iter().enumerate() {
            let endpoint = self.endpoint(index + 1, shape)?;
            if endpoints.iter().any(|earlier| earlier.id == endpoint.id) {
                let key = format!("endpoint.{}.id", endpoint.id);
                return Err(self.refuse(&key, "stands twice; every [[endpoint]] needs an id of its own"));
            }
            endpoints.push(endpoint);
        }
        let journal = self.journal(journal, &projector, &endpoints)?;
        Ok(Config { file: self.file.to_owned(), journal, ingress_listen, projector, endpoints })
    }

    fn projector(&self, shape: ProjectorShape) -> Result<Projector, WrongUse> {
        let ProjectorShape { listen, store, group, instance_id, advertise, epoch, token } = shape;
        let group = group.unwrap_or_else(|| "witness-projector".to_owned());
        if group.is_empty() {
            return Err(
                self.refuse("projector.group", "is empty; leave it out, or give the consumer group a name")
            );
        }
        let listen = self.address("projector.listen", listen, "127.0.0.1:8081")?;
        let token = token.map(|token| self.reference("projector.token", &token)).transpose()?;
        if token.is_none() && !listen.ip().is_loopback() {
            return Err(self.refuse(
                "projector.listen",
                format_args!(
                    "is {listen}, which other machines can reach; set `projector.token` (\"env:NAME\" or \"file:/path\"), or listen on 127.0.0.1"
                ),
            ));
        }
        if let Some(instance_id) = &instance_id {
            self.name("projector.instance_id", instance_id)?;
        }
        if let Some(advertise) = &advertise {
            self.advertise(advertise)?;
        }
        let store = self.folder("projector.store", store, "witness-data/store")?;
        let epoch = match epoch.map_or(Ok(0), u32::try_from) {
            Ok(epoch) if epoch <= EPOCH_MAX => epoch,
            Ok(_) | Err(_) => {
                return Err(
                    self.refuse("projector.epoch", format_args!("must be a number from 0 to {EPOCH_MAX}"))
                );
            }
        };
        Ok(Projector { listen, store, group, instance_id, advertise, epoch, token })
    }

    fn advertise(&self, url: &str) -> Result<(), WrongUse> {
        let authority = url.strip_prefix("http://").and_then(|rest| rest.rsplit_once(':'));
        let is_good = authority.is_some_and(|(host, port)| {
            let characters =
                host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-_[]:".contains(&byte));
            characters && !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port != 0)
        });
        if is_good {
            return Ok(());
        }
        let problem = format!("is {url:?}; it must be http://host:port, as other projectors reach this one");
        Err(self.refuse("projector.advertise", problem))
    }

    fn endpoint(&self, number: usize, shape: EndpointShape) -> Result<Endpoint, WrongUse> {
        let EndpointShape { id, provider, tenant, secrets, keys, tolerance_seconds, max_body_bytes, rate } =
            shape;
        let id = id.ok_or_else(|| {
            self.refuse(
                &format!("endpoint.{number}.id"),
                "is missing; it is the last part of the webhook's URL",
            )
        })?;
        self.name(&format!("endpoint.{number}.id"), &id)?;
        let key = |name: &str| format!("endpoint.{id}.{name}");
        let names = Provider::ALL.map(|provider| format!("{:?}", provider.as_str())).join(", ");
        let provider = match provider {
            None => {
                return Err(
                    self.refuse(&key("provider"), format_args!("is missing; it must be one of {names}"))
                );
            }
            Some(name) => Provider::from_name(&name).ok_or_else(|| {
                self.refuse(&key("provider"), format_args!("is {name:?}; it must be one of {names}"))
            })?,
        };
        let tenant =
            tenant.ok_or_else(|| self.refuse(&key("tenant"), "is missing; it says whose data this is"))?;
        self.name(&key("tenant"), &tenant)?;
        let secrets = self.secrets(&key, provider, secrets, keys)?;
        let body_bytes_default = provider.contract().body_bytes_max_default() as u64;
        let body_bytes =
            self.bounded(&key("max_body_bytes"), max_body_bytes, body_bytes_default, BODY_BYTES)?;
        Ok(Endpoint {
            file: self.file.to_owned(),
            provider,
            tenant,
            secrets,
            tolerance_seconds: self.bounded(
                &key("tolerance_seconds"),
                tolerance_seconds,
                TOLERANCE_SECONDS_DEFAULT,
                TOLERANCE_SECONDS,
            )?,
            body_bytes_max: usize::try_from(body_bytes).unwrap_or(usize::MAX),
            rate: rate.map(|rate| self.rate(&key, rate)).transpose()?,
            id,
        })
    }

    fn secrets(
        &self,
        key: &dyn Fn(&str) -> String,
        provider: Provider,
        secrets: Option<toml::Value>,
        keys: Option<toml::Value>,
    ) -> Result<Secrets, WrongUse> {
        let wants_document = match provider {
            Provider::YCloud | Provider::Yutai => false,
            Provider::Shoc => true,
        };
        if wants_document {
            if secrets.is_some() {
                return Err(self.refuse(
                    &key("secrets"),
                    "is not for shoc; name its key document with `keys = \"file:/path\"`",
                ));
            }
            let keys = keys.ok_or_else(|| {
                self.refuse(
                    &key("keys"),
                    "is missing; name shoc's key document, as in `keys = \"file:/path\"`",
                )
            })?;
            return Ok(Secrets::Document(self.reference(&key("keys"), &keys)?));
        }
        if keys.is_some() {
            let problem =
                format!("is for shoc alone; {} needs `secrets = [\"env:NAME\"]`", provider.as_str());
            return Err(self.refuse(&key("keys"), problem));
        }
        let problem = "a list of where the secrets are, as in `secrets = [\"env:NAME\", \"file:/path\"]`";
        let secrets = secrets
            .ok_or_else(|| self.refuse(&key("secrets"), format_args!("is missing; it is {problem}")))?;
        let listed = secrets
            .as_array()
            .filter(|listed| !listed.is_empty())
            .ok_or_else(|| self.refuse(&key("secrets"), format_args!("must be {problem}")))?;
        let references = listed.iter().map(|reference| self.reference(&key("secrets"), reference));
        Ok(Secrets::Listed(references.collect::<Result<_, _>>()?))
    }

    fn rate(&self, key: &dyn Fn(&str) -> String, shape: RateShape) -> Result<ingress::Rate, WrongUse> {
        let RateShape { per_second, burst } = shape;
        let per_second_key = key("rate.per_second");
        let per_second = per_second.ok_or_else(|| {
            self.refuse(&per_second_key, "is missing; write rate = { per_second = 500, burst = 1000 }")
        })?;
        let per_second = self.bounded(&per_second_key, Some(per_second), 1, RATE)?;
        let burst = self.bounded(&key("rate.burst"), burst, per_second, RATE)?;
        Ok(ingress::Rate { per_second: non_zero(per_second), burst: non_zero(burst) })
    }

    /// A secret's whereabouts. Whatever else stands there is not shown: it may be the secret itself.
    fn reference(&self, key: &str, value: &toml::Value) -> Result<SecretReference, WrongUse> {
        let text = value.as_str().ok_or_else(|| {
            self.refuse(key, "must be text that says where the secret is: \"env:NAME\" or \"file:/path\"")
        })?;
        SecretReference::parse(text).map_err(|error| self.because(key, error))
    }

    fn name(&self, key: &str, text: &str) -> Result<(), WrongUse> {
        if is_name(text, ID_CHARACTERS) {
            return Ok(());
        }
        let (least, most) = (ID_CHARACTERS.start(), ID_CHARACTERS.end());
        Err(self.refuse(
            key,
            format_args!("is {text:?}; it must be {least} to {most} characters of A-Z a-z 0-9 . _ -"),
        ))
    }

    fn address(&self, key: &str, text: Option<String>, default: &str) -> Result<SocketAddr, WrongUse> {
        let text = text.unwrap_or_else(|| default.to_owned());
        text.parse().map_err(|_| {
            self.refuse(
                key,
                format_args!("is {text:?}; it must be an IP address and a port, as in {default:?}"),
            )
        })
    }

    fn folder(&self, key: &str, text: Option<String>, default: &str) -> Result<PathBuf, WrongUse> {
        let text = text.unwrap_or_else(|| default.to_owned());
        if text.is_empty() {
            return Err(self.refuse(key, format_args!("is empty; name a folder, as in {default:?}")));
        }
        Ok(PathBuf::from(text))
    }

    fn bounded(
        &self,
        key: &str,
        value: Option<i64>,
        default: u64,
        range: RangeInclusive<u64>,
    ) -> Result<u64, WrongUse> {
        let Some(value) = value else { return Ok(default) };
        u64::try_from(value).ok().filter(|value| range.contains(value)).ok_or_else(|| {
            let (least, most) = (range.start(), range.end());
            self.refuse(key, format_args!("is {value}; it must be a whole number from {least} to {most}"))
        })
    }
}

fn is_name(text: &str, characters: RangeInclusive<usize>) -> bool {
    // A path segment of dots alone would be taken out of a URL by every client; Kafka takes no such topic.
    let dots = text == "." || text == "..";
    let is_good = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    text.bytes().all(is_good) && !dots && characters.contains(&text.len())
}

/// A number whose range, checked before, begins at one and ends far below the type's own end.
fn non_zero(checked: u64) -> NonZeroU32 {
    u32::try_from(checked).ok().and_then(NonZeroU32::new).unwrap_or(NonZeroU32::MIN)
}

#[cfg(test)]
mod tests;
