//! Redis credentials, given inline or read from files.

use std::{fmt, path::PathBuf};

use secrecy::{ExposeSecret as _, SecretString};

/// A secret text that is never printed.
#[derive(Clone)]
pub enum Secret {
    /// The secret as configured inline.
    Text(SecretString),
    /// A file with the secret. A newline at its end is ignored. The file is read for every
    /// connection, so a changed secret is used from the next connection on.
    File(PathBuf),
}

/// The credentials of a connection.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Credentials {
    /// ACL user; `None` for the user `default`.
    pub username: Option<Secret>,
    pub password: Option<Secret>,
}

impl Secret {
    /// Returns the secret, or an error message for operators.
    pub fn read(&self) -> Result<String, String> {
        match self {
            Self::Text(text) => Ok(text.expose_secret().to_owned()),
            Self::File(path) => match std::fs::read_to_string(path) {
                Ok(text) => match text.trim_end_matches(['\r', '\n']) {
                    "" => Err(format!("{} is empty", path.display())),
                    text => Ok(text.to_owned()),
                },
                Err(error) => Err(format!("cannot read {}: {error}", path.display())),
            },
        }
    }
}

impl Credentials {
    /// Returns the current user name and password.
    pub(super) fn read(&self) -> Result<(Option<String>, Option<String>), String> {
        let read = |secret: &Option<Secret>| secret.as_ref().map(Secret::read).transpose();
        Ok((read(&self.username)?, read(&self.password)?))
    }
}

impl PartialEq for Secret {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Text(this), Self::Text(other)) => this.expose_secret() == other.expose_secret(),
            (Self::File(this), Self::File(other)) => this == other,
            (Self::Text(_), Self::File(_)) | (Self::File(_), Self::Text(_)) => false,
        }
    }
}

impl Eq for Secret {}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(_) => f.write_str(".."),
            Self::File(path) => path.fmt(f),
        }
    }
}
