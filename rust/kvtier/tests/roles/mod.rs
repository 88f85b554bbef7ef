//! Other processes of a test: this test program again, told by an environment variable which part it plays.

#![allow(clippy::unwrap_used, reason = "a step of a test that fails is a failed test")]
#![allow(clippy::print_stderr, reason = "what is skipped says why")]
#![allow(dead_code, unreachable_pub, reason = "shared by several tests, each of which uses a part")]

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Output};

const ROLE: &str = "KVTIER_TEST_ROLE";
const ROOT: &str = "KVTIER_TEST_ROOT";
/// For the roles: the number of the first block.
pub const FIRST: &str = "KVTIER_TEST_FIRST";

/// Parts that other processes play on a root, by name. The test program has a test `another_process` that calls
/// [`Roles::play`]; it is the main function of the other processes.
pub struct Roles(pub &'static [Role]);

type Role = (&'static str, fn(&Path));

impl Roles {
    /// Plays the part that this process is told to; does nothing in a run of the tests.
    pub fn play(&self) {
        let Ok(role) = std::env::var(ROLE) else { return };
        let root = PathBuf::from(std::env::var_os(ROOT).unwrap());
        self.0.iter().find(|(name, _)| *name == role).unwrap().1(&root);
    }

    /// A process that plays a part.
    pub fn process(&self, role: &str, root: &Path) -> Command {
        self.process_under(&[], role, root)
    }

    /// The same below `prefix`, a program that runs the rest of its arguments.
    pub fn process_under(&self, prefix: &[&str], role: &str, root: &Path) -> Command {
        assert!(self.0.iter().any(|(name, _)| *name == role), "no role {role:?}");
        let program = std::env::current_exe().unwrap();
        let mut command = match prefix {
            [] => Command::new(program),
            [first, others @ ..] => {
                let mut command = Command::new(first);
                command.args(others).arg(program);
                command
            }
        };
        command.args(["--exact", "another_process", "--nocapture"]).env(ROLE, role).env(ROOT, root);
        command
    }

    /// Plays a part to its good end in a mount namespace of its own, on what `mount` (a shell command that knows `$ROOT`)
    /// mounts there. Says why, where nothing can be mounted.
    pub fn on_a_mount(&self, mount: &str, role: &str, root: &Path) {
        let script = format!("ROOT='{}'; {mount} >&2 || exit 77; exec \"$@\"", root.display());
        let prefix = ["unshare", "--mount", "sh", "-c", script.as_str(), "sh"];
        let output = match self.process_under(&prefix, role, root).output() {
            Ok(output) => output,
            Err(e) => return eprintln!("skipped: unshare can't be run: {e}"),
        };
        // 1 is unshare's own refusal; a failed test program ends with 101.
        if matches!(output.status.code(), Some(77 | 1)) {
            return eprintln!("skipped: nothing can be mounted here: {}", said_by(&output).trim());
        }
        assert_good_end(&output);
    }
}

fn said_by(output: &Output) -> String {
    String::from_utf8_lossy(&[output.stderr.as_slice(), &output.stdout].concat()).into_owned()
}

/// What a process has said is shown, unless it ended well.
pub fn assert_good_end(output: &Output) {
    assert!(output.status.success(), "{}: {}", output.status, said_by(output));
}

/// A number of the environment's.
pub fn number(name: &str, default: usize) -> usize {
    std::env::var(name).map_or(default, |text| text.parse().unwrap())
}

/// Tells the test that it may go on.
pub fn ready() {
    let mut out = std::io::stdout();
    out.write_all(b"\nready\n").and_then(|()| out.flush()).unwrap();
}

/// Waits until another process has said so. As long as the rest of what it says is kept, it may go on saying things.
pub fn wait_until_ready(child: &mut Child) -> BufReader<ChildStdout> {
    let mut lines = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    while line.trim() != "ready" {
        line.clear();
        assert!(lines.read_line(&mut line).unwrap() > 0, "the process ended before it was ready");
    }
    lines
}

/// Ends another process there and then.
pub fn kill(child: &mut Child) {
    child.kill().unwrap();
    child.wait().unwrap();
}
