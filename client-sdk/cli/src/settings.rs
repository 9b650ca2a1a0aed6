//! Endpoints and credentials: from flags, else the environment, else a context of the configuration
//! file.

use std::{
    collections::BTreeMap,
    env, fs,
    path::{Path, PathBuf},
};

use leasehold::{Certificate, ClientTlsConfig, Identity};
use serde::Deserialize;

use crate::{args::ConnectionArgs, exit::Failure};

const ENDPOINT: &str = "http://127.0.0.1:7070";
const ADMIN_ENDPOINT: &str = "http://127.0.0.1:7071";

/// Settings for calls to a broker.
pub(crate) struct Settings {
    pub(crate) endpoint: String,
    pub(crate) admin_endpoint: String,
    pub(crate) namespace: String,
    pub(crate) token: Option<String>,
    /// File that contains the token. The token may be replaced there.
    pub(crate) token_file: Option<PathBuf>,
    /// True if the token may be sent over a network unencrypted.
    pub(crate) allow_insecure_token: bool,
    /// TLS configuration. `None`: the system trust store and no client certificate.
    pub(crate) tls: Option<ClientTlsConfig>,
    pub(crate) quiet: bool,
}

/// Contents of the configuration file.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct ConfigFile {
    /// Name of the default context.
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
    /// Combines the flags, the environment and the configuration file.
    pub(crate) fn read(connection: &ConnectionArgs) -> Result<Self, Failure> {
        let context = selected_context(connection)?;
        let text = |flag: &Option<String>, configured: Option<String>, default: &str| {
            let found = flag.clone().or(configured);
            found.unwrap_or_else(|| default.to_owned())
        };
        let file =
            |flag: &Option<PathBuf>, configured: Option<PathBuf>| flag.clone().or(configured);
        let token_file = file(&connection.token_file, context.token_file);
        let token = token_file.as_deref().map(read_token).transpose()?;
        let tls = tls(
            file(&connection.ca_file, context.ca_file),
            file(&connection.cert_file, context.cert_file),
            file(&connection.key_file, context.key_file),
        )?;
        Ok(Self {
            endpoint: text(&connection.endpoint, context.endpoint, ENDPOINT),
            admin_endpoint: text(
                &connection.admin_endpoint,
                context.admin_endpoint,
                ADMIN_ENDPOINT,
            ),
            namespace: text(&connection.namespace, context.namespace, "default"),
            token,
            token_file,
            allow_insecure_token: connection.allow_insecure_token || context.allow_insecure_token,
            tls,
            quiet: connection.quiet,
        })
    }
}

/// Returns the selected context, with file names relative to the configuration file. Empty if no
/// context is selected.
fn selected_context(connection: &ConnectionArgs) -> Result<Context, Failure> {
    let path = match &connection.config {
        Some(path) => path.clone(),
        None => match default_path().filter(|path| path.exists()) {
            Some(path) => path,
            None => return context_without_file(connection),
        },
    };
    let file: ConfigFile =
        toml::from_str(&read_text(&path, "the configuration")?).map_err(|error| {
            let error = error.to_string();
            Failure::general(format!(
                "the configuration {}: {}",
                path.display(),
                error.trim_end()
            ))
        })?;
    let Some(name) = connection.context.as_ref().or(file.context.as_ref()) else {
        return Ok(Context::default());
    };
    let Some(context) = file.contexts.get(name).cloned() else {
        let names: Vec<_> = file.contexts.keys().map(String::as_str).collect();
        return Err(Failure::general(format!(
            "there is no context {name:?} in {}; it has: {}",
            path.display(),
            if names.is_empty() {
                "none".to_owned()
            } else {
                names.join(", ")
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

fn context_without_file(connection: &ConnectionArgs) -> Result<Context, Failure> {
    let Some(name) = &connection.context else {
        return Ok(Context::default());
    };
    let path = default_path().unwrap_or_else(|| "~/.config/leasehold/config.toml".into());
    Err(Failure::general(format!(
        "there is no context {name:?}, because there is no file {}; write one with\n  [contexts.{name}]\n  endpoint = \"{ENDPOINT}\"",
        path.display()
    )))
}

fn default_path() -> Option<PathBuf> {
    let variable = |name| {
        env::var_os(name)
            .filter(|value| !value.is_empty())
            .map(PathBuf::from)
    };
    let folder = variable("XDG_CONFIG_HOME").or_else(|| Some(variable("HOME")?.join(".config")))?;
    Some(folder.join("leasehold/config.toml"))
}

fn read_token(path: &Path) -> Result<String, Failure> {
    let token = read_text(path, "the bearer token")?.trim().to_owned();
    if token.is_empty() {
        return Err(Failure::general(format!(
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
            let cert = read_text(&cert, "the client certificate")?;
            Some(Identity::from_pem(cert, read_text(&key, "the key")?))
        }
        (Some(_), None) => return Err(missing_half("certificate", "--key-file")),
        (None, Some(_)) => return Err(missing_half("key", "--cert-file")),
    };
    if ca.is_none() && identity.is_none() {
        return Ok(None);
    }
    let mut tls = ClientTlsConfig::new();
    tls = match ca {
        Some(ca) => tls.ca_certificate(Certificate::from_pem(read_text(&ca, "the certificates")?)),
        None => tls.with_native_roots(),
    };
    if let Some(identity) = identity {
        tls = tls.identity(identity);
    }
    Ok(Some(tls))
}

fn missing_half(present: &str, missing: &str) -> Failure {
    Failure::general(format!("a client {present} is given alone; add {missing}"))
}

fn read_text(path: &Path, description: &str) -> Result<String, Failure> {
    let text = fs::read_to_string(path);
    text.map_err(|error| {
        Failure::general(format!(
            "cannot read {description} {}: {error}",
            path.display()
        ))
    })
}
