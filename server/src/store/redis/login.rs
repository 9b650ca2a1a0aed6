//! Who the broker says that it is: user and password, as text or in files.

use std::{fmt, path::PathBuf};

use secrecy::{ExposeSecret as _, SecretString};

/// A text that is never shown.
#[derive(Clone)]
pub enum Secret {
    /// As it is.
    Text(SecretString),
    /// In a file, without the end of its line. It is read for every connection, so that a changed
    /// one counts from the next connection on.
    File(PathBuf),
}

/// The user of a connection.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Login {
    /// ACL user; `None`: `default`.
    pub username: Option<Secret>,
    /// Its password.
    pub password: Option<Secret>,
}

impl Secret {
    /// The text, or what an operator has to know.
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

impl Login {
    /// User and password as they are now.
    pub(super) fn read(&self) -> Result<(Option<String>, Option<String>), String> {
        let read = |secret: &Option<Secret>| secret.as_ref().map(Secret::read).transpose();
        Ok((read(&self.username)?, read(&self.password)?))
    }
}

impl PartialEq for Secret {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Text(one), Self::Text(other)) => one.expose_secret() == other.expose_secret(),
            (Self::File(one), Self::File(other)) => one == other,
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
