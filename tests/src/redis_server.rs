//! A real redis-server process on a port and in a directory of its own, killed when dropped.

use std::{
    fs,
    net::{Ipv4Addr, TcpListener, TcpStream},
    path::PathBuf,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

/// A running server.
pub struct RedisServer {
    port: u16,
    directory: PathBuf,
    arguments: Vec<String>,
    process: Child,
}

impl RedisServer {
    /// Starts a server without persistence; `arguments` come last on its command line.
    pub fn start(arguments: &[&str]) -> Self {
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
            .and_then(|listener| listener.local_addr())
            .expect("a free port")
            .port();
        let directory =
            std::env::temp_dir().join(format!("leasehold-redis-{}-{port}", std::process::id()));
        fs::create_dir_all(&directory).expect("a directory for redis-server");
        let arguments: Vec<String> = arguments.iter().map(|a| (*a).to_owned()).collect();
        let process = spawn(port, &directory, &arguments);
        let server = Self {
            port,
            directory,
            arguments,
            process,
        };
        server.wait_until_ready();
        server
    }

    /// The port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Ends the process as a power failure would.
    pub fn kill(&mut self) {
        self.process.kill().expect("kill redis-server");
        self.process.wait().expect("wait for redis-server");
    }

    /// Starts the process again after [`kill`](Self::kill): same port, directory and arguments.
    pub fn start_again(&mut self) {
        self.process = spawn(self.port, &self.directory, &self.arguments);
        self.wait_until_ready();
    }

    /// Stops the process without ending it: connections stay open and nothing answers.
    pub fn freeze(&self) {
        self.signal("STOP");
    }

    /// Lets a frozen process go on.
    pub fn thaw(&self) {
        self.signal("CONT");
    }

    /// Runs one command with redis-cli and returns what it printed.
    pub fn cli(&self, command: &[&str]) -> String {
        let output = Command::new("redis-cli")
            .args(["-h", "127.0.0.1", "-p", &self.port.to_string()])
            .args(command)
            .output()
            .expect("redis-cli runs");
        assert!(output.status.success(), "redis-cli {command:?}: {output:?}");
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    fn signal(&self, signal: &str) {
        let status = Command::new("/bin/kill")
            .args([format!("-{signal}"), self.process.id().to_string()])
            .status()
            .expect("/bin/kill runs");
        assert!(status.success(), "kill -{signal}");
    }

    fn wait_until_ready(&self) {
        let deadline = Instant::now() + Duration::from_secs(10);
        let ping = || {
            TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).is_ok()
                && self.cli(&["PING"]) == "PONG"
        };
        while !ping() {
            assert!(Instant::now() < deadline, "redis-server does not answer");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = fs::remove_dir_all(&self.directory);
    }
}

fn spawn(port: u16, directory: &PathBuf, arguments: &[String]) -> Child {
    Command::new("redis-server")
        .args(["--bind", "127.0.0.1", "--port", &port.to_string(), "--dir"])
        .arg(directory)
        .args(["--save", "", "--appendonly", "no"])
        .args(arguments)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("redis-server is installed")
}
