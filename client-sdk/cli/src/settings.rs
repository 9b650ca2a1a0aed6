//! Where the broker is and how to convince it: flags, then the environment, then a context.

use std::{
    collections::BTreeMap,
    env, fs,
    path::{Path, PathBuf},
};

use leasehold::{Certificate, ClientTlsConfig, Identity};
use serde::Deserialize;

use crate::{args::Reach, exit::Failure};

const ENDPOINT: &str = "http://127.0.0.1:7070";
const ADMIN_ENDPOINT: &str = "http://127.0.0.1:7071";

/// What is needed to call a broker.
pub(crate) struct Settings {
    pub(crate) endpoint: String,
    pub(crate) admin_endpoint: String,
    pub(crate) namespace: String,
    /// The bearer token.
    pub(crate) token: Option<String>,
    /// Where it was found; it may be replaced there.
    pub(crate) token_file: Option<PathBuf>,
    /// Whether the token may cross a network unencrypted.
    pub(crate) allow_insecure_token: bool,
    /// `None`: whom the machine trusts.
    pub(crate) tls: Option<ClientTlsConfig>,
    pub(crate) quiet: bool,
}

/// The configuration file.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    /// The context that counts when none is named.
    context: Option<String>,
    #[serde(default)]
    contexts: BTreeMap<String, Context>,
}

#[derive(Debug, Default, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Context {
    endpoint: Option<String>,
    admin_endpoint: Option<String>,
    namespace: Option<String>,
    token_file: Option<PathBuf>,
    #[serde(default)]
    allow_insecure_token: bool,
    ca_file: Option<PathBuf>,
    cert_file: Option<PathBuf>,
    key_file: Option<PathBuf>,
}

impl Settings {
    /// Puts together what this call of the program says.
    pub(crate) fn read(reach: &Reach) -> Result<Self, Failure> {
        let context = context(reach)?;
        let text = |given: &Option<String>, configured: Option<String>, default: &str| {
            let found = given.clone().or(configured);
            found.unwrap_or_else(|| default.to_owned())
        };
        let file =
            |given: &Option<PathBuf>, configured: Option<PathBuf>| given.clone().or(configured);
        let token_file = file(&reach.token_file, context.token_file);
        let token = token_file.as_deref().map(token_of).transpose()?;
        let tls = tls(
            file(&reach.ca_file, context.ca_file),
            file(&reach.cert_file, context.cert_file),
            file(&reach.key_file, context.key_file),
        )?;
        Ok(Self {
            endpoint: text(&reach.endpoint, context.endpoint, ENDPOINT),
            admin_endpoint: text(
                &reach.admin_endpoint,
                context.admin_endpoint,
                ADMIN_ENDPOINT,
            ),
            namespace: text(&reach.namespace, context.namespace, "default"),
            token,
            token_file,
            allow_insecure_token: reach.allow_insecure_token || context.allow_insecure_token,
            tls,
            quiet: reach.quiet,
        })
    }
}

/// The context that counts, with its files found from where the configuration is; empty if none does.
fn context(reach: &Reach) -> Result<Context, Failure> {
    let path = match &reach.config {
        Some(path) => path.clone(),
        None => match default_path().filter(|path| path.exists()) {
            Some(path) => path,
            None => return no_file(reach),
        },
    };
    let file: File = toml::from_str(&text_of(&path, "the configuration")?).map_err(|error| {
        let error = error.to_string();
        Failure::own(format!(
            "the configuration {}: {}",
            path.display(),
            error.trim_end()
        ))
    })?;
    let Some(name) = reach.context.as_ref().or(file.context.as_ref()) else {
        return Ok(Context::default());
    };
    let Some(context) = file.contexts.get(name).cloned() else {
        let known: Vec<_> = file.contexts.keys().map(String::as_str).collect();
        return Err(Failure::own(format!(
            "there is no context {name:?} in {}; it has: {}",
            path.display(),
            if known.is_empty() {
                "none".to_owned()
            } else {
                known.join(", ")
            }
        )));
    };
    let folder = path.parent().unwrap_or(Path::new("")).to_owned();
    let found = |file: Option<PathBuf>| file.map(|file| folder.join(file));
    Ok(Context {
        token_file: found(context.token_file),
        ca_file: found(context.ca_file),
        cert_file: found(context.cert_file),
        key_file: found(context.key_file),
        ..context
    })
}

fn no_file(reach: &Reach) -> Result<Context, Failure> {
    let Some(name) = &reach.context else {
        return Ok(Context::default());
    };
    let path = default_path().unwrap_or_else(|| "~/.config/leasehold/config.toml".into());
    Err(Failure::own(format!(
        "there is no context {name:?}, because there is no file {}; write one with\n  [contexts.{name}]\n  endpoint = \"{ENDPOINT}\"",
        path.display()
    )))
}

fn default_path() -> Option<PathBuf> {
    let set = |name| {
        env::var_os(name)
            .filter(|value| !value.is_empty())
            .map(PathBuf::from)
    };
    let folder = set("XDG_CONFIG_HOME").or_else(|| Some(set("HOME")?.join(".config")))?;
    Some(folder.join("leasehold/config.toml"))
}

fn token_of(path: &Path) -> Result<String, Failure> {
    let token = text_of(path, "the bearer token")?.trim().to_owned();
    if token.is_empty() {
        return Err(Failure::own(format!(
            "the token file {} is empty",
            path.display()
        )));
    }
    Ok(token)
}

fn tls(
    ca: Option<PathBuf>,
    cert: Option<PathBuf>,
    key: Option<PathBuf>,
) -> Result<Option<ClientTlsConfig>, Failure> {
    let identity = match (cert, key) {
        (None, None) => None,
        (Some(cert), Some(key)) => {
            let cert = text_of(&cert, "the client certificate")?;
            Some(Identity::from_pem(cert, text_of(&key, "the key")?))
        }
        (Some(_), None) => return Err(lone("certificate", "--key-file")),
        (None, Some(_)) => return Err(lone("key", "--cert-file")),
    };
    if ca.is_none() && identity.is_none() {
        return Ok(None);
    }
    let mut tls = ClientTlsConfig::new();
    tls = match ca {
        Some(ca) => tls.ca_certificate(Certificate::from_pem(text_of(&ca, "the certificates")?)),
        None => tls.with_native_roots(),
    };
    if let Some(identity) = identity {
        tls = tls.identity(identity);
    }
    Ok(Some(tls))
}

fn lone(there: &str, missing: &str) -> Failure {
    Failure::own(format!("a client {there} is given alone; add {missing}"))
}

fn text_of(path: &Path, what: &str) -> Result<String, Failure> {
    let text = fs::read_to_string(path);
    text.map_err(|error| Failure::own(format!("cannot read {what} {}: {error}", path.display())))
}
