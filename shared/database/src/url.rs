use std::{fmt, str::FromStr};

use sqlx::postgres::PgConnectOptions;

/// Where the database is. Its password is never shown.
#[derive(Clone)]
pub struct DatabaseUrl(PgConnectOptions);

impl DatabaseUrl {
    pub(crate) fn options(&self) -> PgConnectOptions {
        self.0.clone()
    }
}

impl FromStr for DatabaseUrl {
    type Err = String;

    fn from_str(url: &str) -> Result<Self, String> {
        let scheme = url.split(':').next().unwrap_or_default();
        if !matches!(scheme, "postgres" | "postgresql") {
            return Err("it must begin with postgres://".into());
        }
        // The cause may quote the URL, and the URL holds the password.
        PgConnectOptions::from_str(url).map(Self).map_err(|_| {
            "not a URL like postgres://user:password@host:5432/database (percent-encode special characters)"
                .into()
        })
    }
}

impl fmt::Debug for DatabaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(options) = self;
        write!(f, "postgres://{}@{}:{}", options.get_username(), options.get_host(), options.get_port())
    }
}
