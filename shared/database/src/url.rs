use std::{fmt, str::FromStr};

use sqlx::postgres::PgConnectOptions;

/// Where the database is. Its password is never shown.
#[derive(Clone)]
pub struct DatabaseUrl(PgConnectOptions);

impl DatabaseUrl {
    pub fn options(&self) -> PgConnectOptions {
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
        // Without TLS in this build, the client would wait for a server that lets it in without.
        let (address, parameters) = url.split_once('?').unwrap_or((url, ""));
        let wants_tls = |parameter: &str| {
            parameter
                .strip_prefix("sslmode=")
                .is_some_and(|mode| !["disable", "allow", "prefer"].contains(&mode))
        };
        if parameters.split('&').any(wants_tls) {
            return Err("sslmode must be disable, allow or prefer: this build has no TLS".into());
        }
        // The client would look it up as one name, again and again.
        if address.rsplit('@').next().is_some_and(|hosts| hosts.contains(',')) {
            return Err("it must name one host".into());
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_that_this_build_cannot_honour_is_refused() {
        for (url, why) in [
            ("http://localhost/shop", "must begin with"),
            ("postgres://orders:secret@localhost/shop?sslmode=require", "no TLS"),
            ("postgres://orders:secret@one,two/shop", "one host"),
            ("postgres://localhost:port/shop", "not a URL"),
        ] {
            let refused = url.parse::<DatabaseUrl>().unwrap_err();
            assert!(refused.contains(why) && !refused.contains("secret"), "{url}: {refused}");
        }
        for url in
            ["postgres://orders:a%2Cb@localhost/shop", "postgres://orders@localhost/shop?sslmode=prefer"]
        {
            assert!(url.parse::<DatabaseUrl>().is_ok(), "{url}");
        }
    }
}
