//! `witness demo`: everything Witness does, in one sitting, needing nothing. Sets the stage, has the story
//! played and told, and clears the stage. Must never touch anything outside its temporary folder.

mod play;
mod story;
mod tell;

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use anyhow::Context;
use schema::Provider;
use serde_json::{Value, json};
use service::clock::{Clock, SystemClock};
use tokio::sync::oneshot;

use crate::config::Config;
use crate::serve::{Services, Which};
use crate::telemetry;
use crate::up::interrupted;
use play::{Stage, endpoint_id};
use story::{Delivery, Step, TENANT};
use tell::Teller;

/// Show everything Witness does, on this machine, needing nothing.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Print what was sent and answered as one JSON object instead of a story.
    #[arg(long)]
    json: bool,
    /// Stay up after the story, for questions of your own, until Ctrl-C.
    #[arg(long)]
    keep: bool,
}

/// Plays the story; `false` where any answer was not what the contracts demand.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<bool> {
    // The story tells of every refusal itself.
    telemetry::init("off")?;
    let folder = tempfile::Builder::new()
        .prefix("witness-demo-")
        .tempdir()
        .context("cannot make a temporary folder")?;
    let runtime = tokio::runtime::Runtime::new()?;
    let ended = runtime.block_on(perform(arguments, folder.path()));
    drop(runtime);
    folder.close().context("cannot remove the temporary folder")?;
    ended
}

async fn perform(arguments: &Arguments, folder: &Path) -> anyhow::Result<bool> {
    let interrupted = interrupted()?;
    tokio::pin!(interrupted);
    let config_file = write_configuration(folder)?;
    let config = Config::load(&config_file, [])?;
    let services = Services::open(&config, Which::Both, telemetry::metrics()?).await?;
    let ingress = services.ingress_address().context("the ingress is not bound")?;
    let projector = services.projector_address().context("the projector is not bound")?;
    let mut secrets = BTreeMap::new();
    for endpoint in &config.endpoints {
        secrets.insert(endpoint.provider, endpoint.signing_secret().await?);
    }
    write_samples(folder)?;
    // From here on the file says which ports were given, so that `witness send` finds the door.
    fs::write(&config_file, configuration(folder, ingress, projector))?;

    let (stop, stopped) = oneshot::channel::<()>();
    let mut serving = tokio::spawn(services.run(async { drop(stopped.await) }));
    let stage = Stage::new(ingress, projector, secrets, SystemClock.now().seconds());
    let is_json = arguments.json;
    let mut story = tokio::task::spawn_blocking(move || {
        if is_json { as_json(stage, output()) } else { as_story(stage, output()) }
    });
    let told = tokio::select! {
        told = &mut story => told?,
        ended = &mut serving => return ended?.map(|()| false),
        () = &mut interrupted => Ok(false),
    };
    if told.is_ok() && !is_json {
        let lines = if arguments.keep { invitation(folder, ingress, projector) } else { farewell() };
        Teller::new(output()).lines(&lines)?;
    }
    if told.is_ok() && arguments.keep {
        tokio::select! {
            () = &mut interrupted => {}
            ended = &mut serving => return ended?.map(|()| false),
        }
    }
    drop(stop);
    serving.await??;
    told
}

/// Standard output; styles reach it only where a terminal wants them.
fn output() -> impl Write {
    anstream::AutoStream::auto(std::io::stdout())
}

fn as_story(mut stage: Stage, out: impl Write) -> anyhow::Result<bool> {
    let mut teller = Teller::new(out);
    let mut wrong = 0;
    teller.title(stage.ingress(), stage.projector())?;
    for chapter in story::chapters() {
        teller.chapter(&chapter)?;
        for step in &chapter.steps {
            match step {
                Step::Deliver(delivery) => {
                    let delivered = stage.deliver(delivery)?;
                    wrong += delivered.wrong.len();
                    teller.delivered(delivery.words, &delivered)?;
                }
                Step::Look(look) => {
                    let seen = stage.look(look)?;
                    wrong += seen.wrong.len();
                    teller.seen(&seen)?;
                }
            }
        }
    }
    let attention = stage.attention()?;
    wrong += attention.wrong.len();
    teller.attention(&attention)?;
    teller.end(wrong)?;
    Ok(wrong == 0)
}

fn as_json(mut stage: Stage, mut out: impl Write) -> anyhow::Result<bool> {
    let mut wrong = 0;
    let mut chapters = Vec::new();
    for chapter in story::chapters() {
        let mut steps = Vec::new();
        for step in &chapter.steps {
            steps.push(match step {
                Step::Deliver(delivery) => {
                    let delivered = stage.deliver(delivery)?;
                    wrong += delivered.wrong.len();
                    json!({
                        "delivery": delivery.words,
                        "endpoint": endpoint_id(delivery.provider),
                        "body": delivery.body,
                        "status": delivered.answer.status,
                        "answer": delivered.answer.body,
                        "wrong": delivered.wrong,
                    })
                }
                Step::Look(look) => {
                    let seen = stage.look(look)?;
                    wrong += seen.wrong.len();
                    json!({
                        "subject": seen.subject,
                        "status": seen.projection.status,
                        "answer": seen.projection.body,
                        "history": seen.history,
                        "facts": seen.facts,
                        "wrong": seen.wrong,
                    })
                }
            });
        }
        chapters.push(json!({ "title": chapter.title, "steps": steps }));
    }
    let attention = stage.attention()?;
    wrong += attention.wrong.len();
    let attention = json!({ "items": attention.items, "wrong": attention.wrong });
    let story: Value = json!({ "chapters": chapters, "attention": attention, "as_demanded": wrong == 0 });
    writeln!(out, "{story:#}")?;
    Ok(wrong == 0)
}

/// Makes secrets for three endpoints, and the file that names them.
fn write_configuration(folder: &Path) -> anyhow::Result<PathBuf> {
    let keys = json!({ "keys": [
        { "kid": "demo-2", "secret": random_secret()? },
        { "kid": "demo-1", "secret": random_secret()? },
    ] });
    fs::write(folder.join("ycloud.secret"), format!("whsec_{}\n", random_secret()?))?;
    fs::write(folder.join("yutai.secret"), format!("{}\n", random_secret()?))?;
    fs::write(folder.join("shoc.keys.json"), format!("{keys:#}\n"))?;
    let file = folder.join("witness.toml");
    let any_port = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    fs::write(&file, configuration(folder, any_port, any_port))?;
    Ok(file)
}

fn random_secret() -> anyhow::Result<String> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).context("this machine has no randomness")?;
    Ok(hex::encode(bytes))
}

fn configuration(folder: &Path, ingress: SocketAddr, projector: SocketAddr) -> String {
    let at = folder.display();
    let mut text = format!(
        "[journal]\npath = '{at}/journal'\n[ingress]\nlisten = \"{ingress}\"\n[projector]\nlisten = \"{projector}\"\nstore = '{at}/store'\n"
    );
    for provider in Provider::ALL {
        let secrets = match provider {
            Provider::YCloud => format!("secrets = ['file:{at}/ycloud.secret']"),
            Provider::Shoc => format!("keys = 'file:{at}/shoc.keys.json'"),
            Provider::Yutai => format!("secrets = ['file:{at}/yutai.secret']"),
        };
        let (id, name) = (endpoint_id(provider), provider.as_str());
        text += &format!(
            "[[endpoint]]\nid = \"{id}\"\nprovider = \"{name}\"\ntenant = \"{TENANT}\"\n{secrets}\n"
        );
    }
    text
}

/// The first true delivery of each provider, as files for `witness send`.
fn write_samples(folder: &Path) -> anyhow::Result<()> {
    for provider in Provider::ALL {
        if let Some(delivery) = first_of(provider) {
            fs::write(folder.join(format!("{}.json", provider.as_str())), delivery.body)?;
        }
    }
    Ok(())
}

fn first_of(provider: Provider) -> Option<Delivery> {
    let steps = story::chapters().into_iter().flat_map(|chapter| chapter.steps);
    steps
        .filter_map(|step| match step {
            Step::Deliver(delivery) => Some(delivery),
            Step::Look(_) => None,
        })
        .find(|delivery| delivery.provider == provider)
}

/// How this program was called, for lines that a person pastes.
fn program() -> String {
    std::env::args().next().unwrap_or_else(|| "witness".to_owned())
}

fn farewell() -> Vec<String> {
    let program = program();
    vec![
        String::new(),
        "The temporary folder is gone. Next:".to_owned(),
        format!("  {program} demo --keep        the same, and it stays up for questions of your own"),
        format!("  {program} up                 your own endpoints; begin with witness.example.toml"),
        format!("  {program} send --help        sign a file as your provider would, and post it"),
    ]
}

fn invitation(folder: &Path, ingress: SocketAddr, projector: SocketAddr) -> Vec<String> {
    let (program, at) = (program(), folder.display());
    let subject = format!("http://{projector}/v1/subjects/{TENANT}/ycloud/message/msg-7f3a");
    vec![
        String::new(),
        "Witness stays up until Ctrl-C; then the folder below is removed. Ask it:".to_owned(),
        format!("  curl -s {subject}"),
        format!("  curl -s {subject}/history"),
        format!("  curl -s 'http://{projector}/v1/subjects?tenant={TENANT}'"),
        format!("  curl -s http://{projector}/v1/attention"),
        String::new(),
        format!(
            "Send it something ({at} holds the configuration, the secrets and a sample of each provider):"
        ),
        format!("  {program} send --endpoint ycloud-demo --config {at}/witness.toml {at}/ycloud.json"),
        String::new(),
        "Or try without a signature:".to_owned(),
        format!(
            "  curl -si http://{ingress}/webhooks/ycloud-demo -H 'content-type: application/json' -d '{{}}'"
        ),
    ]
}
