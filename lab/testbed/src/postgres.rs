//! A private PostgreSQL server.

use std::fs::{self, File};
use std::io::Write as _;
use std::ops::Deref;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, Result};
use uuid::Uuid;

use crate::command::{command_as, is_root, run};
use crate::container::{ContainerSpec, POSTGRES_IMAGE};
use crate::home::Home;
use crate::install::find_postgres;
use crate::ports::free_port;
use crate::private_dir::PrivateDir;
use crate::server::{LocalServer, Probe, Server};
use crate::sql;

/// All tests of a process share a server, and each opens its own pools: the default of 100 connections is too low.
const MAX_CONNECTIONS: &str = "max_connections=400";

const NAME: &str = "PostgreSQL";

/// How long a change of a setting may take.
const SETTING_DEADLINE: Duration = Duration::from_secs(10);

/// How long it may take to create or to copy the files of a server, on a busy machine.
const COPY_DEADLINE: Duration = Duration::from_secs(300);

/// A PostgreSQL server with the operations of a [`Server`]. It keeps its port and its data until it is dropped.
#[derive(Debug)]
pub struct Postgres {
    server: Server,
    port: u16,
    password: String,
    /// `None`: in a container.
    cluster: Option<Cluster>,
}

impl Postgres {
    /// Starts a new, empty server where [`Home::choose`] says, and waits until it accepts connections.
    pub async fn private() -> Result<Self> {
        Self::private_in(Home::choose().await?).await
    }

    /// Like [`Postgres::private`], but in `home`.
    pub async fn private_in(home: Home) -> Result<Self> {
        let port = free_port()?;
        // A database superuser can run programs as the server's user: other users of this machine must not be able to
        // guess the password.
        let password = Uuid::new_v4().simple().to_string();
        let container = ContainerSpec {
            name: format!("testbed-postgres-{}-{port}", std::process::id()),
            image: POSTGRES_IMAGE,
            env: vec![("POSTGRES_PASSWORD", password.clone())],
            args: ["postgres", "-c", MAX_CONNECTIONS].map(str::to_owned).into(),
            ports: vec![(port, 5432)],
        };
        let probe = Probe::Postgres { url: admin_url(&password, port, "postgres") };
        let mut cluster = None;
        let local = async {
            let (new, dir) = Cluster::new()?;
            new.create(&dir, &password).await?;
            Ok(cluster.insert(new).server(port, dir))
        };
        let server = Server::start_new(NAME, home, local, container, probe).await?;
        Ok(Self { server, port, password, cluster })
    }

    /// Starts a standby of this server, and waits until it answers. It follows at the port `through`, which leads to this
    /// server. Not in containers.
    pub async fn standby(&self, through: u16) -> Result<Self> {
        self.local()?;
        let port = free_port()?;
        let (cluster, dir) = Cluster::new()?;
        cluster.copy(self, through, &name_at(port)).await?;
        let probe = Probe::Postgres { url: admin_url(&self.password, port, "postgres") };
        let server = Server::start_local(NAME, cluster.server(port, dir), probe).await?;
        Ok(Self { server, port, password: self.password.clone(), cluster: Some(cluster) })
    }

    /// Kills this server if it runs, throws its files away, and starts it as a standby of another one: see
    /// [`Postgres::standby`].
    pub async fn follow(&self, primary: &Self, through: u16) -> Result<()> {
        if self.server.pid().await.is_some() {
            self.server.kill().await?;
        }
        self.local()?.copy(primary, through, &self.standby_name()).await?;
        self.server.start().await
    }

    /// Changes settings that need a restart, and restarts the server.
    pub async fn set(&self, settings: &[(&str, &str)]) -> Result<()> {
        for (name, value) in settings {
            let sql = format!("alter system set {name} = '{value}'");
            sql::execute(&self.admin_url("postgres"), &sql, SETTING_DEADLINE).await?;
        }
        self.server.stop().await?;
        self.server.start().await
    }

    /// Copies schemas of a database into a file: all of it as it is at one moment. Not in containers.
    pub async fn back_up(&self, database: &str, schemas: &[&str]) -> Result<PathBuf> {
        let file = self.local()?.kept.join("dump");
        let mut dump = self.client("pg_dump", database)?;
        dump.args(schemas.iter().map(|schema| format!("--schema={schema}")));
        dump.arg("--format=custom").arg("--file").arg(&file);
        run(dump, COPY_DEADLINE).await?;
        Ok(file)
    }

    /// Replaces schemas of a database by their copies.
    pub async fn restore(&self, database: &str, backup: &Path) -> Result<()> {
        let mut restore = self.client("pg_restore", database)?;
        restore.args(["--clean", "--if-exists", "--single-transaction"]).arg(backup);
        run(restore, COPY_DEADLINE).await
    }

    /// Copies all files of the server, and archives its log from now on. Both together restore it to any later moment. The server
    /// is restarted. Not in containers.
    pub async fn archive(&self) -> Result<()> {
        let cluster = self.local()?;
        let archive = format!("cp %p {}/%f", cluster.kept.display());
        self.set(&[("archive_mode", "on"), ("archive_command", &archive)]).await?;
        // `-X none`: the log that the copy needs is in the archive.
        let mut copy = self.base_backup(cluster, &cluster.kept.join("base"), self.port);
        copy.args(["-X", "none"]);
        run(copy, COPY_DEADLINE).await
    }

    /// Restores everything to a moment after [`Postgres::archive`], before the last commit: stops the server, puts the copy in the
    /// place of its files, replays the log up to that moment, and starts it.
    pub async fn restore_to(&self, moment: SystemTime) -> Result<()> {
        let cluster = self.local()?;
        // The server archives the rest of its log before it ends.
        self.server.stop().await?;
        cluster.erase().await?;
        let mut copy = cluster.command("/bin/cp");
        copy.arg("--archive").arg(cluster.kept.join("base/.")).arg(&cluster.data);
        run(copy, COPY_DEADLINE).await?;
        // PostgreSQL takes no `Z` here.
        let moment = humantime::format_rfc3339_micros(moment).to_string().replace('Z', "+00");
        // `hot_standby`: it answers nobody before it has reached the moment and accepts writes.
        let settings = format!(
            "restore_command = 'cp {}/%f %p'\nrecovery_target_time = '{moment}'\nrecovery_target_action = promote\nhot_standby = off\n",
            cluster.kept.display(),
        );
        let mut file = File::options().append(true).open(cluster.data.join("postgresql.auto.conf"))?;
        file.write_all(settings.as_bytes()).context("failed to write the settings of the recovery")?;
        File::create(cluster.data.join("recovery.signal"))?;
        self.server.start().await
    }

    /// Stops the server, upgrades its files to another major version with the programs in `bin`, and starts that one. It stays at
    /// its port. Then it analyzes a database. Not in containers.
    pub async fn upgrade(&self, bin: &Path, database: &str) -> Result<()> {
        let cluster = self.local()?;
        self.server.stop().await?;
        let (old, new) = (
            &cluster.data,
            Cluster { bin: bin.to_owned(), data: cluster.kept.join("new"), ..cluster.clone() },
        );
        let password = self.server.dir()?.secret_of(cluster.user, "password", &self.password)?;
        let created = run(new.initdb(&password), COPY_DEADLINE).await;
        fs::remove_file(&password)?;
        created?;
        let mut upgrade = new.command("pg_upgrade");
        upgrade.current_dir(&cluster.kept).env("PGPASSWORD", &self.password);
        upgrade.args(["--link", "-U", "postgres", "-b"]).arg(fs::read_link(&cluster.bin)?).arg("-B").arg(bin);
        upgrade.arg("-d").arg(old).arg("-D").arg(&new.data);
        run(upgrade, COPY_DEADLINE).await?;
        fs::rename(old, cluster.kept.with_file_name("old"))?;
        fs::rename(&new.data, old)?;
        fs::remove_file(&cluster.bin)?;
        symlink(bin, &cluster.bin)?;
        self.server.start().await?;
        // The new server knows nothing about the contents of tables yet, and would plan for empty ones.
        let mut analyze = self.client("vacuumdb", database)?;
        analyze.arg("--analyze-only");
        run(analyze, COPY_DEADLINE).await
    }

    /// A command that copies the files of this server, which it reaches at a port.
    fn base_backup(&self, cluster: &Cluster, to: &Path, port: u16) -> Command {
        let mut backup = cluster.command("pg_basebackup");
        backup.arg("-D").arg(to).env("PGPASSWORD", &self.password);
        // With `-R` a standby copies the slots through a connection to this database.
        backup.args(["-d", "dbname=postgres"]);
        backup.args(["-h", "127.0.0.1", "-p", &port.to_string(), "-U", "postgres"]);
        backup.args(["--checkpoint=fast", "--no-sync"]);
        backup
    }

    /// A client program, as the administrator of a database.
    fn client(&self, program: &str, database: &str) -> Result<Command> {
        let mut client = self.local()?.command(program);
        client.env("PGPASSWORD", &self.password).args(["-h", "127.0.0.1", "-p", &self.port.to_string()]);
        client.args(["-U", "postgres", "-d", database]);
        Ok(client)
    }

    fn local(&self) -> Result<&Cluster> {
        self.cluster.as_ref().context("this needs the machine's own PostgreSQL: --with local")
    }

    /// How `synchronous_standby_names` and `pg_stat_replication` name this server when it is a standby.
    pub fn standby_name(&self) -> String {
        name_at(self.port)
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// The superuser's URL for a database of this server.
    pub fn admin_url(&self, database: &str) -> String {
        admin_url(&self.password, self.port, database)
    }

    /// Another login's URL for a database of this server.
    pub fn url(&self, login: &str, password: &str, database: &str) -> String {
        format!("postgres://{login}:{password}@127.0.0.1:{}/{database}", self.port)
    }
}

impl Deref for Postgres {
    type Target = Server;

    fn deref(&self) -> &Server {
        &self.server
    }
}

fn admin_url(password: &str, port: u16, database: &str) -> String {
    format!("postgres://postgres:{password}@127.0.0.1:{port}/{database}")
}

/// A server's files, and how its programs are run.
#[derive(Debug, Clone)]
struct Cluster {
    /// A link to the directory of its programs.
    bin: PathBuf,
    /// `initdb` and `postgres` refuse to run as root.
    user: Option<&'static str>,
    data: PathBuf,
    /// What outlives the files: a dump, or a copy of them with an archive of the log.
    kept: PathBuf,
}

impl Cluster {
    /// A directory for the files, and where they will be in it.
    fn new() -> Result<(Self, PrivateDir)> {
        let user = is_root().then_some("postgres");
        let dir = PrivateDir::new("postgres", user)?;
        let [data, kept] = [dir.directory_of(user, "data")?, dir.directory_of(user, "kept")?];
        let bin = dir.path().join("programs");
        symlink(find_postgres()?, &bin)?;
        Ok((Self { bin, user, data, kept }, dir))
    }

    fn command(&self, program: impl AsRef<Path>) -> Command {
        let program = self.bin.join(program);
        let mut command = match self.user {
            Some(user) => command_as(user, program),
            None => Command::new(program),
        };
        // The user may not be able to read the current directory.
        command.current_dir(self.data.parent().unwrap_or(&self.data));
        command
    }

    /// Creates a new, empty cluster. Durability keeps its default (`fsync` is on): the tests crash the server.
    async fn create(&self, dir: &PrivateDir, password: &str) -> Result<()> {
        let password_file = dir.secret_of(self.user, "password", password)?;
        let created = run(self.initdb(&password_file), COPY_DEADLINE).await;
        fs::remove_file(&password_file)?;
        created
    }

    fn initdb(&self, password_file: &Path) -> Command {
        let mut initdb = self.command("initdb");
        initdb.arg("-D").arg(&self.data).arg("--pwfile").arg(password_file);
        // `--no-sync`: the files of an empty cluster need not survive a power cut.
        initdb.args(["-U", "postgres", "--auth=scram-sha-256", "--encoding=UTF8", "--locale=C", "--no-sync"]);
        initdb
    }

    /// Replaces the files by a copy of a running server's, which follows it when it is started.
    async fn copy(&self, primary: &Postgres, through: u16, name: &str) -> Result<()> {
        self.erase().await?;
        let mut backup = primary.base_backup(self, &self.data, through);
        // `-R`: with the settings of a standby. `-C -S`: with a slot, so the primary keeps the log that this one lacks.
        backup.args(["-R", "-X", "stream", "-C", "-S", name]);
        run(backup, COPY_DEADLINE).await
    }

    async fn erase(&self) -> Result<()> {
        let mut erase = self.command("/usr/bin/find");
        erase.arg(&self.data).args(["-mindepth", "1", "-delete"]);
        run(erase, COPY_DEADLINE).await
    }

    fn server(&self, port: u16, dir: PrivateDir) -> LocalServer {
        let mut postgres = self.command("postgres");
        postgres.arg("-D").arg(&self.data).arg("-p").arg(port.to_string());
        let name = format!("cluster_name={}", name_at(port));
        let fixed = [MAX_CONNECTIONS, "listen_addresses=127.0.0.1", "unix_socket_directories="];
        // A standby connects again at once after its link was cut.
        for setting in fixed.into_iter().chain([&*name, "wal_retrieve_retry_interval=200ms"]) {
            postgres.arg("-c").arg(setting);
        }
        // From PostgreSQL 17 on a standby keeps a copy of the log relay's slot.
        let version = fs::read_to_string(self.data.join("PG_VERSION")).unwrap_or_default();
        if version.trim().parse::<u32>().is_ok_and(|version| version >= 17) {
            postgres.args(["-c", "sync_replication_slots=on", "-c", "hot_standby_feedback=on"]);
        }
        // SIGINT asks for a fast shutdown. SIGTERM would wait until the last client has disconnected.
        LocalServer::new(postgres, "INT", dir, "data")
    }
}

/// The name under which the server at a port follows another one.
fn name_at(port: u16) -> String {
    format!("server_{port}")
}
